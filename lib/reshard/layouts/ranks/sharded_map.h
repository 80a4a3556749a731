#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// The files of ranks that are to be written.
struct RankTarget {
  const Layout* layout = nullptr;  // has ranks
  Format format = Format::kSafetensors;
  std::uint32_t first_rank = 0;  // of the tensor-parallel ranks
  std::uint32_t last_rank = UINT32_MAX;
  std::uint64_t max_part_bytes = UINT64_MAX;  // of tensors in one file, where the layout has several files a rank
  const StageMetadata* metadata = nullptr;    // the written stage's; nullptr for rules without metadata
  bool stores_tied = true;                    // else whoever loads the files ties parameters by itself
};

/// The checkpoint that `plans` describe (one per pipeline rank), over `tp` tensor-parallel and `ep` expert-parallel
/// ranks, of the tensors `logical`. Paths are relative to the output directory.
/// \throws Error kBadInput if the originals of one fused tensor differ in dtype.
TargetMap sharded_target_map(const std::vector<StagePlan>& plans, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep = 1);

/// The same for one stage whose ranks have the tensors of `rules`.
TargetMap sharded_target_map(const std::vector<PartitionRule>& rules, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target);

/// The rules of a pipeline rank of a checkpoint with metadata, or of the one that `checkpoint.rules` are of.
/// \throws Error kBadInput, naming the metadata file, if it splits tensors into more chunks than any model has.
std::vector<PartitionRule> rules_of_stage(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank);

/// Its tensor map. One that the files say was larger or smaller is an error. `checkpoint` is borrowed for the call.
/// \param tied      parameters that the files may have though no stage lists them: each is partitioned as its source.
/// \param unlisted  tensors that are replicas of others if the metadata does not list them; any other that it does not
///                  list is an error.
SourceMap sharded_source_map(const ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied,
                             const std::vector<TiedParameter>& unlisted = {});

}  // namespace reshard
