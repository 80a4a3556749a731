// Which parameter a number in the optimizer's files is. No name is stored: numbers follow the model's own order within
// parameter groups, and training code makes these by rules, of which the usual ones are known here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

struct ShardedCheckpoint;

/// How training code puts parameters into two groups, of which the second has no weight decay.
enum class GroupRule : std::uint8_t {
  kNorms,       // "bias" or "norm" in the name: examples/training/llama/training_utils.py of NxD
  kLayerNorms,  // norms by class and name, and biases: create_optimizer of optimum-neuron's trainers/transformers.py
  kBias,        // "bias" in the name: NxD Training
  kOne,         // all in one group
};

inline constexpr const char* kGroupsById = "ids";  // no rule: which parameters they are stays open (optimizer_ids.h)
inline constexpr const char* kGroupRules[] = {"auto", "norms", "layernorms", "bias", "one"};
inline constexpr const char* kSourceGroupRules[] = {"auto", "norms", "layernorms", "bias", "one", kGroupsById};

/// Of a checkpoint that is written: its groups are the source's, unless a rule is given.
inline constexpr LayoutOption kOptimizerGroups{
    .name = "optimizer-groups",
    .type = LayoutOption::Type::kChoice,
    .help = "Rule by which the optimizer's parameters are grouped (default: as in the source)",
    .choices = kGroupRules,
    .default_value = "auto",
    .of_states = true};

/// Of one that is read: what `auto` cannot tell must be said.
inline constexpr LayoutOption kSourceOptimizerGroups{
    .name = kOptimizerGroups.name,
    .type = LayoutOption::Type::kChoice,
    .help = kOptimizerGroups.help,
    .choices = kSourceGroupRules,
    .default_value = "auto",
    .of_source = true,
    .source_help =
        "How training code grouped the optimizer's parameters: norms (biases and norms apart, as NxD's "
        "examples), layernorms (as optimum-neuron), bias (biases apart), one, auto, which takes what fits, "
        "or ids, which leaves open which parameters they are, where only dp changes",
    .only_of_source = true};

/// The shape of an entry before data-parallel ranks shared it, as a rank of the stage has it; std::nullopt if its file does
/// not record it.
std::optional<Dims> local_shape(const OptimizerStage& stage, const OptimizerEntry& entry, std::size_t rank);

/// Whether a parameter is in the second group. Which norms optimum-neuron lists by their class, `model_type` says.
bool is_in_second_group(GroupRule rule, std::string_view parameter, std::string_view model_type);

/// A parameter as one rank's file of the model has it.
struct LocalParameter {
  std::string name;
  Dims shape;
  bool is_expert = false;  // of experts that are spread over ranks
};

/// The names of the optimizer's entries, [pp_rank × ep + ep_rank]: those of `parameters` (of the same ranks, in the order
/// of the model's files) in the order of the rule that fits all files, or of the one that was `chosen`.
/// \throws Error kBadInput, naming a file and the numbers, if no rule fits; kUsage, naming the option, if several do and
///         give different names.
std::vector<std::vector<std::string>> names_of_entries(const OptimizerFiles& files,
                                                       const std::vector<std::vector<LocalParameter>>& parameters,
                                                       std::optional<GroupRule> chosen, std::string_view model_type);

/// The same of entries that have names. Those without, which have no states, are what `parameters` has besides.
/// \throws Error kBadInput, naming the parameter and numbers, for one that the model lacks, or other numbers of them.
std::vector<std::vector<std::string>> stored_names(const OptimizerFiles& files,
                                                   const std::vector<std::vector<LocalParameter>>& parameters);

/// The parameters of `groups` in the groups that `rule` makes. A group has the hyperparameters that its parameters had; one
/// without parameters those of the first that there is. `groups` are not empty.
/// \throws Error kUnsupported, naming the parameter, where a group's parameters had different ones.
std::vector<OptimizerGroup> regrouped(std::span<const OptimizerGroup> groups, GroupRule rule,
                                      std::string_view model_type);

/// The rule that kOptimizerGroups or kSourceOptimizerGroups has as its value; nothing for auto and ids.
std::optional<GroupRule> chosen_group_rule(const OptionValues& values);

}  // namespace reshard
