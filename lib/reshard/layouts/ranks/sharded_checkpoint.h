#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

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
  std::vector<StageMetadata> metadata;              // [pp_rank]; empty where the folder has none
  std::vector<std::filesystem::path> described_in;  // [pp_rank], the files that contain it; empty if it is inferred
  std::vector<PartitionRule> rules;                 // of its one stage, where these say it and no metadata
  std::optional<RankRecord> record;                 // of its first file, if that has one
  std::vector<std::vector<Container>> files;  // [pp_rank][ep_rank × tp + tp_rank], of the first data-parallel rank
  std::vector<Copy> copies;                   // the same weights as other data-parallel ranks have saved them
  bool has_old_metadata = false;              // of stage_pt.h: it does not say how many ranks there were
  std::vector<std::string> not_saved;         // parameters that the metadata lists and no file holds
  bool allows_extra = false;                  // tensors that the model does not have are whole on every rank
  bool lacks_weights = false;                 // they are in the optimizer's files alone; `files` have no bytes
  std::uint64_t other_stages = 0;             // tensors that were ignored (remove_other_stages), over all files
  std::vector<std::string> warnings;          // whole sentences
};

/// The file that contains the metadata of a pipeline rank; where it would be if the metadata is inferred.
std::filesystem::path metadata_path(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank);

/// Reads all headers and metadata and validates that every rank is there, that the ranks of a stage agree in names,
/// shapes and dtypes, and that the metadata, where there is any, is about these files. With `adapter`, the shards are
/// of the adapter of that name, and the metadata becomes that of its files (adapter_metadata).
/// \throws Error kBadInput; kUnsupported for expert-parallel ranks whose metadata does not say how the experts are
/// spread, and for adapters that are taken for a model.
ShardedCheckpoint read_sharded_checkpoint(Files& files, const FoundLayout& folder,
                                          const std::optional<std::string>& adapter = {});

}  // namespace reshard
