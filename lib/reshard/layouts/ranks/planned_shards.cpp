#include "reshard/layouts/ranks/planned_shards.h"

#include <unordered_map>

#include "reshard/layouts/core/planned_model.h"
#include "reshard/layouts/ranks/sharded_map.h"

namespace reshard {
namespace {

constexpr const char* kByMetadata =
    "the metadata says how its tensors are split here, and the plan in config.json (base_model_tp_plan) how they are "
    "split elsewhere";

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
