#include "reshard/layouts/optimizer/optimizer_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr GroupRule kRules[] = {GroupRule::kNorms, GroupRule::kLayerNorms, GroupRule::kBias, GroupRule::kOne};
static_assert(std::size(kGroupRules) == std::size(kRules) + 1);

const char* name(GroupRule rule) {
  return kGroupRules[static_cast<std::size_t>(rule) + 1];
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// Whether optimum-neuron's list contains the norms of this model type by their class.
bool lists_norm_class(std::string_view model_type) {
  return model_type == "llama" || model_type == "granite";
}

/// The parameters of a stage in the order of a rule's numbers, and the sizes of the groups. Experts' parameters come
/// last, in the same number of groups again.
struct Numbered {
  std::vector<const LocalParameter*> order;
  std::vector<std::uint32_t> sizes;
};

Numbered number(const std::vector<LocalParameter>& parameters, GroupRule rule, const OptimizerStage& file,
                std::string_view model_type) {
  Numbered numbered;
  const std::uint32_t dense = file.first_expert_group;
  const auto groups = static_cast<std::uint32_t>(file.groups.size());
  const bool by_experts = dense < groups;
  const auto group_of = [&](const LocalParameter& parameter) {
    const std::uint32_t first = by_experts && parameter.is_expert ? dense : 0;
    return first + (is_in_second_group(rule, parameter.name, model_type) ? 1u : 0u);
  };
  for (std::uint32_t g = 0; g < std::max(groups, 2u); ++g) {
    const std::size_t before = numbered.order.size();
    for (const LocalParameter& parameter : parameters)
      if (group_of(parameter) == g) numbered.order.push_back(&parameter);
    numbered.sizes.push_back(static_cast<std::uint32_t>(numbered.order.size() - before));
  }
  return numbered;
}

/// Returns an error that describes the first group whose size does not match; std::nullopt if all match.
std::optional<Error> misfit_of_sizes(const OptimizerStage& file, const Numbered& numbered, GroupRule rule) {
  for (std::size_t g = 0; g < numbered.sizes.size(); ++g) {
    const std::uint32_t count = g < file.groups.size() ? file.groups[g].count : 0;
    if (count != numbered.sizes[g])
      return Error(
          ErrorKind::kBadInput,
          fmt::format(
              "its parameter group {} has {} parameters, but according to rule {} the model's file has {} for it", g,
              count, name(rule), numbered.sizes[g]));
  }
  return std::nullopt;
}

/// Does the same for the shapes of parameters, if the sizes match.
std::optional<Error> misfit_of_shapes(const OptimizerStage& file, const Numbered& numbered, GroupRule rule) {
  for (std::uint32_t i = 0; i < file.entries.size(); ++i) {
    const std::optional<Dims>& shape = file.entries[i].shape;
    if (!shape || *shape == numbered.order[i]->shape) continue;
    return Error(ErrorKind::kBadInput,
                 fmt::format("{} has the shape {}, but according to rule {} it is {}, which is {} in the model's file",
                             file.name_of(i), to_string(*shape), name(rule), numbered.order[i]->name,
                             to_string(numbered.order[i]->shape)));
  }
  return std::nullopt;
}

struct Candidate {
  GroupRule rule;
  std::vector<std::vector<std::string>> names;
};

}  // namespace

bool is_in_second_group(GroupRule rule, std::string_view parameter, std::string_view model_type) {
  std::string lower(parameter);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  switch (rule) {
    case GroupRule::kNorms: return holds(parameter, "bias") || holds(parameter, "norm");
    case GroupRule::kLayerNorms:
      return holds(lower, "bias") || holds(lower, "layernorm") || holds(lower, "rmsnorm") ||
             (lists_norm_class(model_type) && holds(lower, "norm"));
    case GroupRule::kBias: return holds(parameter, "bias");
    case GroupRule::kOne: return false;
  }
  return false;
}

std::vector<std::vector<std::string>> names_of_entries(const OptimizerFiles& files,
                                                       const std::vector<std::vector<LocalParameter>>& parameters,
                                                       std::optional<GroupRule> chosen, std::string_view model_type) {
  std::vector<Candidate> fitting;
  std::optional<Error> closest_misfit;
  for (const GroupRule rule : kRules) {
    if (chosen && rule != *chosen) continue;
    Candidate candidate{rule, {}};
    std::optional<Error> wrong;
    bool is_shape = false;
    for (std::uint32_t i = 0; i < files.pp * files.ep && !wrong; ++i) {
      const OptimizerStage& file = files.stages[i / files.ep];
      const Numbered numbered = number(parameters[i], rule, file, model_type);
      wrong = misfit_of_sizes(file, numbered, rule);
      is_shape = !wrong;
      if (!wrong) wrong = misfit_of_shapes(file, numbered, rule);
      if (wrong) wrong->in(files.path_of(i / files.ep, i % files.ep));
      auto& names = candidate.names.emplace_back();
      for (const LocalParameter* parameter : numbered.order) names.push_back(parameter->name);
    }
    if (!wrong)
      fitting.push_back(std::move(candidate));
    else if (!closest_misfit || is_shape)  // if the sizes match, a misfit of shapes is more specific
      closest_misfit = std::move(wrong);
  }
  if (fitting.empty())
    throw closest_misfit->hint(chosen ? "another `from-optimizer-groups` may fit"
                                      : "no rule of `from-optimizer-groups` fits: the optimizer belongs to another "
                                        "model, some parameters were frozen, or the training code uses its own rule; "
                                        "if only `dp` changes, `from-optimizer-groups` ids needs no names");
  for (const Candidate& other : fitting)
    if (other.names != fitting.front().names)
      throw Error(ErrorKind::kUsage,
                  fmt::format("the optimizer's files store no names, and the groups fit rule {} as well as rule {}, "
                              "which assign different states to parameters of equal shapes",
                              name(fitting.front().rule), name(other.rule)))
          .in(files.folder)
          .hint("set `from-optimizer-groups` to the rule by which the training code grouped parameters");
  return std::move(fitting.front().names);
}

std::vector<std::vector<std::string>> stored_names(const OptimizerFiles& files,
                                                   const std::vector<std::vector<LocalParameter>>& parameters) {
  std::vector<std::vector<std::string>> all;
  for (std::uint32_t pp_rank = 0; pp_rank < files.pp; ++pp_rank) {
    const OptimizerStage& file = files.stages[pp_rank];
    std::vector<std::string> others;  // parameters of the model without states
    std::unordered_set<std::string_view> known;
    for (const LocalParameter& parameter : parameters[pp_rank]) known.insert(parameter.name);
    std::vector<std::string>& names = all.emplace_back();
    for (const OptimizerEntry& entry : file.entries) {
      if (entry.name.empty()) break;
      if (known.erase(entry.name) == 0)
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("has states of a parameter that the model's files of pp rank {} do not contain", pp_rank))
            .in(file.path)
            .tensor(entry.name)
            .hint("the optimizer and the model come from different checkpoints");
      names.push_back(entry.name);
    }
    for (const LocalParameter& parameter : parameters[pp_rank])
      if (known.count(parameter.name) > 0) others.push_back(parameter.name);
    const std::size_t nameless = file.entries.size() - names.size();
    if (nameless > 0 && nameless != others.size())
      throw Error(
          ErrorKind::kBadInput,
          fmt::format(
              "lists {} parameters without states, but the model has {} parameters that are not in the optimizer",
              nameless, others.size()))
          .in(file.path)
          .hint("the optimizer and the model come from different checkpoints");
    if (nameless > 0) names.insert(names.end(), others.begin(), others.end());
  }
  return all;
}

std::vector<OptimizerGroup> regrouped(std::span<const OptimizerGroup> groups, GroupRule rule,
                                      std::string_view model_type) {
  std::vector<OptimizerGroup> made(rule == GroupRule::kOne ? 1 : 2);
  std::vector<std::optional<std::size_t>> source_of(made.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const std::string& parameter : groups[g].parameters) {
      const std::size_t own = is_in_second_group(rule, parameter, model_type) ? 1 : 0;
      OptimizerGroup& group = made[own];
      const std::size_t source = source_of[own].value_or(g);
      if (source != g && groups[source].values != groups[g].values)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("according to rule {} it is in one group with {}, but in the source it has the "
                                "hyperparameters of group {}, and the other those of group {}",
                                name(rule), printable(group.parameters.front()), g, source))
            .tensor(parameter)
            .hint("choose another `optimizer-groups`, or leave it out to keep the source's groups");
      source_of[own] = source;
      group.parameters.push_back(parameter);
    }
  for (std::size_t own = 0; own < made.size(); ++own) {
    const auto other =
        std::find_if(source_of.begin(), source_of.end(), [](const auto& one) { return one.has_value(); });
    made[own].values = groups[source_of[own].value_or(other == source_of.end() ? 0 : **other)].values;
  }
  return made;
}

std::optional<GroupRule> chosen_group_rule(const OptionValues& values) {
  const std::string chosen = values.choice(kSourceOptimizerGroups);
  for (const GroupRule rule : kRules)
    if (chosen == name(rule)) return rule;
  return std::nullopt;
}

}  // namespace reshard
