// Maps the numbers in the optimizer's files to parameters. Files contain no names: numbers follow the model's own order
// within parameter groups. Training code forms the groups by rules, and the usual rules are known here.
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

/// How training code divides parameters into two groups; the second has no weight decay.
enum class GroupRule : std::uint8_t {
  kNorms,       // "bias" or "norm" in the name: examples/training/llama/training_utils.py of NxD
  kLayerNorms,  // norms by class and name, and biases: create_optimizer of optimum-neuron's trainers/transformers.py
  kBias,        // "bias" in the name: NxD Training
  kOne,         // all in one group
};

inline constexpr const char* kGroupsById = "ids";  // no rule: the parameters stay unknown (optimizer_ids.h)
inline constexpr const char* kGroupRules[] = {"auto", "norms", "layernorms", "bias", "one"};
inline constexpr const char* kSourceGroupRules[] = {"auto", "norms", "layernorms", "bias", "one", kGroupsById};

/// For a target: the groups are the source's, unless a rule is given.
inline constexpr LayoutOption kOptimizerGroups{
    .name = "optimizer-groups",
    .type = LayoutOption::Type::kChoice,
    .help = "Rule by which the optimizer's parameters are grouped (default: as in the source)",
    .choices = kGroupRules,
    .default_value = "auto",
    .of_states = true};

/// For a source: required if `auto` cannot decide.
inline constexpr LayoutOption kSourceOptimizerGroups{
    .name = kOptimizerGroups.name,
    .type = LayoutOption::Type::kChoice,
    .help = kOptimizerGroups.help,
    .choices = kSourceGroupRules,
    .default_value = "auto",
    .of_source = true,
    .source_help =
        "How training code grouped the optimizer's parameters: norms (biases and norms apart, as NxD's examples), "
        "layernorms (as optimum-neuron), bias (biases apart), one, auto (the rule that fits), or ids, which needs no "
        "names if only dp changes",
    .only_of_source = true};

/// Whether a parameter is in the second group. The norms that optimum-neuron lists by class depend on `model_type`.
bool is_in_second_group(GroupRule rule, std::string_view parameter, std::string_view model_type);

/// A parameter in one rank's file of the model.
struct LocalParameter {
  std::string name;
  Dims shape;
  bool is_expert = false;  // belongs to experts that are distributed over ranks
};

/// Returns the names of the optimizer's entries, [pp_rank × ep + ep_rank]. They are the names of `parameters` (of the
/// same ranks, in the order of the model's files), in the order of the `chosen` rule or of the rule that matches all
/// files.
/// \throws Error kBadInput, naming a file and the numbers, if no rule matches; kUsage, naming the option, if several
/// rules match and result in different names.
std::vector<std::vector<std::string>> names_of_entries(const OptimizerFiles& files,
                                                       const std::vector<std::vector<LocalParameter>>& parameters,
                                                       std::optional<GroupRule> chosen, std::string_view model_type);

/// Does the same for entries with names. The entries without names, which have no states, are the remaining
/// `parameters`.
/// \throws Error kBadInput, naming the parameter and the numbers, if the model does not have it or if the numbers of
/// parameters differ.
std::vector<std::vector<std::string>> stored_names(const OptimizerFiles& files,
                                                   const std::vector<std::vector<LocalParameter>>& parameters);

/// Groups the parameters of `groups`, which must not be empty, by `rule`. A group has the hyperparameters that its
/// parameters had; a group without parameters has those of the first group with parameters.
/// \throws Error kUnsupported, naming the parameter, if the parameters of a group had different hyperparameters.
std::vector<OptimizerGroup> regrouped(std::span<const OptimizerGroup> groups, GroupRule rule,
                                      std::string_view model_type);

/// Returns the rule that is the value of kOptimizerGroups or kSourceOptimizerGroups; std::nullopt for auto and ids.
std::optional<GroupRule> chosen_group_rule(const OptionValues& values);

}  // namespace reshard
