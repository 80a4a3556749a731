#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/formats/pickle/saved_value.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// The rank files to be written.
struct RankTarget {
  const Layout* layout = nullptr;  // must have ranks
  Format format = Format::kSafetensors;
  std::uint32_t first_rank = 0;  // first tensor-parallel rank
  std::uint32_t last_rank = UINT32_MAX;
  std::uint64_t max_part_bytes = UINT64_MAX;  // of tensors per file, if the layout has several files per rank
  bool stores_tied = true;                    // otherwise the program that loads the files ties parameters itself
  SavedValue::Dict values{};                  // plain values in each state dict, after the tensors; not in safetensors
};

/// Returns the map of the checkpoint that `plans` describe (one per pipeline rank), over `tp` tensor-parallel and `ep`
/// expert-parallel ranks, for the tensors `logical`. Paths are relative to the output directory.
/// \throws Error kUnsupported if the logical tensors of one fused tensor differ in dtype.
TargetMap sharded_target_map(const std::vector<StagePlan>& plans, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep = 1);

/// Like the overload above, for one stage whose ranks have the tensors of `rules`.
TargetMap sharded_target_map(const std::vector<PartitionRule>& rules, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target);

/// The tensors of one pipeline rank.
struct StageRules {
  std::vector<PartitionRule> rules;
  std::vector<TiedParameter> tied;
  const StageMetadata* metadata = nullptr;  // borrowed; nullptr if there is none
};

/// Returns the rules of every pipeline rank of `plans`, which are borrowed.
std::vector<StageRules> stage_rules(const std::vector<StagePlan>& plans, std::uint32_t tp, std::uint32_t ep);

/// Like the overloads above, for stages with rules.
TargetMap sharded_target_map(const std::vector<StageRules>& stages, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep);

/// Returns the rules of a pipeline rank: those of its metadata, then those of `checkpoint.rules`.
/// \throws Error kBadInput, naming the metadata file, if it splits tensors into more chunks than any model has.
std::vector<PartitionRule> rules_of_stage(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank);

/// Returns the tensor map of `checkpoint`, which is borrowed for the call. Fails if shapes differ from those that the
/// files record.
/// \param tied      parameters that the files may contain although no stage lists them; partitioned like their sources.
/// \param unlisted  tensors that are replicas of others if the metadata does not list them. Any other unlisted tensor
/// is an error.
SourceMap sharded_source_map(const ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied,
                             const std::vector<TiedParameter>& unlisted = {});

}  // namespace reshard
