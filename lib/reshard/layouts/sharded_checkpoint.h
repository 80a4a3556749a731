#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/cut.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/rank_record.h"
#include "reshard/layouts/tensor_map.h"
#include "reshard/specs/mesh.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {

class RankLayout;

/// The files of ranks that are to be written.
struct RankTarget {
  const RankLayout* layout = nullptr;
  Format format = Format::kSafetensors;
  std::uint32_t first_rank = 0;  // of the tensor-parallel ranks
  std::uint32_t last_rank = UINT32_MAX;
  bool stores_tied = true;  // else whoever loads the files ties parameters by itself
};

/// The checkpoint that `plans` describe (one per pipeline rank), over `tp` tensor-parallel and `ep` expert-parallel
/// ranks, of the tensors `logical`. Paths are relative to the output directory.
/// \throws Error kBadInput if the originals of one fused tensor differ in dtype.
TensorMap sharded_target_map(const std::vector<StagePlan>& plans, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep = 1);

/// The same for one stage whose ranks have the tensors of `rules`.
TensorMap sharded_target_map(const std::vector<CutRule>& rules, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target);

/// A sharded checkpoint as it stands on disk: complete, and alike over the tensor-parallel ranks of each stage.
struct ShardedCheckpoint {
  struct Copy {
    RankId rank;
    Container file;
  };

  FoundLayout folder;
  std::optional<std::string> adapter;    // the one whose shards these are; nothing for a model's
  Format format = Format::kSafetensors;  // of its first rank
  std::uint32_t tp = 0;
  std::uint32_t pp = 0;
  std::uint32_t ep = 1;
  std::vector<StageMetadata> metadata;        // [pp_rank]; empty where the folder has none
  std::vector<CutRule> rules;                 // of its one stage, where these say it and no metadata
  std::optional<RankRecord> record;           // of its first file, if that has one
  std::vector<std::vector<Container>> files;  // [pp_rank][ep_rank × tp + tp_rank], of the first data-parallel rank
  std::vector<Copy> copies;                   // the same weights as other data-parallel ranks have saved them
  bool has_old_metadata = false;              // of torch_metadata.h: it does not say how many ranks there were
  std::vector<std::string> not_saved;         // parameters that the metadata lists and no file holds
  std::uint64_t other_stages = 0;             // tensors that were ignored (remove_other_stages), over all files
  std::vector<std::string> warnings;          // whole sentences
};

/// Reads all headers and metadata and proves that every rank is there, that the ranks of a stage agree in names, shapes
/// and dtypes, and that the metadata, where there is any, is about these files. With `adapter`, the shards are of the
/// adapter of that name, and the metadata becomes that of its files (adapter_metadata).
/// \throws Error kBadInput; kUnsupported for expert-parallel ranks whose metadata does not say how the experts are
/// spread, and for adapters that are taken for a model.
ShardedCheckpoint read_sharded_checkpoint(const FoundLayout& folder, const std::optional<std::string>& adapter = {});

/// Fills the metadata of a checkpoint that has none, from its tensors' names and shapes and the model that config.json
/// describes. `heads` says of attention what the shapes may not: the order of heads, and where it is given the
/// multiplier, or that heads of zeros fill up.
/// \throws Error kBadInput for a tensor that the model does not explain.
void derive_metadata(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads = {});

/// Its tensor map. `tied` says which parameters may be second copies of others; one that the metadata does not list and
/// that is not tied either is an error, and so is one that the files say was larger or smaller. `checkpoint` is
/// borrowed for the call.
TensorMap sharded_source_map(const ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied);

}  // namespace reshard
