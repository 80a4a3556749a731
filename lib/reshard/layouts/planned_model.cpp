#include "reshard/layouts/planned_model.h"

#include <fmt/format.h>

#include <unordered_map>

#include "reshard/base/strings.h"
#include "reshard/layouts/sharded_map.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

std::vector<std::string> names_of(const std::vector<WholeTensor>& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const WholeTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

constexpr const char* kByPlan =
    "the plan in config.json (base_model_tp_plan) says how its tensors are split, and what it does not name every rank "
    "has all of";
constexpr const char* kByMetadata =
    "the metadata says how its tensors are split here, and the plan in config.json (base_model_tp_plan) how they are "
    "split elsewhere";

ConfigPlan plan_for(const ModelConfig& config, const std::vector<WholeTensor>& tensors, const char* who_says,
                    std::vector<std::string>& notes) {
  ConfigPlan plan(config, names_of(tensors));
  notes.push_back(fmt::format("{}; {}", describe_unknown_type(config), who_says));
  const auto note_idle = [&](const char* what, const std::vector<std::string>& keys) {
    if (!keys.empty())
      notes.push_back(fmt::format("{} in config.json names modules that are not there: {}", what, list_names(keys)));
  };
  note_idle("the plan", plan.idle_keys());
  note_idle("base_model_pp_plan", plan.idle_stage_keys());
  return plan;
}

/// The originals of the tensors that an expert-parallel rank of a stage has, as its metadata has them; its other
/// tensor-parallel ranks' files are alike. Tensors that it does not list, or whose sizes do not come out, are told of
/// later.
void add_wholes(const ShardedCheckpoint& shards, std::uint32_t pp_rank, std::uint32_t ep_rank,
                std::vector<WholeTensor>& tensors) {
  const Container& file = shards.files[pp_rank][std::size_t{ep_rank} * shards.tp];
  const std::vector<PartitionRule> rules = rules_of_stage(shards, pp_rank);
  std::unordered_map<std::string_view, const PartitionRule*> by_name;
  for (const PartitionRule& rule : rules) by_name.emplace(rule.stored_name, &rule);
  for (const TensorEntry& tensor : file.tensors) {
    const auto rule = by_name.find(tensor.name);
    if (rule == by_name.end()) continue;
    const auto shapes = logical_shapes(*rule->second, ep_rank * shards.tp, tensor.shape);
    if (!shapes) continue;
    for (std::size_t i = 0; i < shapes->size(); ++i)
      tensors.push_back({rule->second->parts[i].logical_name, (*shapes)[i]});
  }
}

}  // namespace

Model planned_model(const ModelConfig& config, const std::vector<Container>& files, std::vector<std::string>& notes) {
  std::vector<WholeTensor> tensors;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) tensors.push_back({tensor.name, tensor.shape});
  return plan_for(config, tensors, kByPlan, notes).model(tensors);
}

Model planned_model(const ModelConfig& config, const ShardedCheckpoint& shards, std::vector<std::string>& notes) {
  std::vector<WholeTensor> tensors;
  const bool has_metadata = !shards.metadata.empty();
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank) {
    if (has_metadata)
      for (std::uint32_t ep_rank = 0; ep_rank < shards.ep; ++ep_rank) add_wholes(shards, pp_rank, ep_rank, tensors);
    else
      for (const TensorEntry& tensor : shards.files[pp_rank].front().tensors)
        tensors.push_back({tensor.name, tensor.shape});
  }
  const ConfigPlan plan = plan_for(config, tensors, has_metadata ? kByMetadata : kByPlan, notes);
  const OriginalShapes recorded = shards.record ? *shards.record->originals : OriginalShapes{};
  if (!has_metadata)
    for (WholeTensor& tensor : tensors) {
      const auto filled = recorded.find(tensor.name);
      tensor.shape = filled == recorded.end() ? plan.whole_shape(tensor.name, tensor.shape, shards.tp) : filled->second;
    }
  return plan.model(std::move(tensors));
}

}  // namespace reshard
