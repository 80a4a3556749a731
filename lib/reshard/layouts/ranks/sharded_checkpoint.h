#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/known_model.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// A sharded checkpoint on disk: complete, and consistent over the tensor-parallel ranks of each stage.
struct ShardedCheckpoint {
  struct Copy {
    RankId rank;
    Container file;
  };

  FoundLayout folder;
  std::optional<std::string> adapter;    // name of the adapter; std::nullopt for a model
  Format format = Format::kSafetensors;  // format of its first rank
  std::uint32_t tp = 0;
  std::uint32_t pp = 0;
  std::uint32_t ep = 1;
  std::vector<StageMetadata> metadata;              // [pp_rank]; empty if the folder has none
  std::vector<std::filesystem::path> described_in;  // [pp_rank], files with the metadata; empty if it is inferred
  std::vector<std::vector<PartitionRule>> rules;    // [pp_rank], of tensors that `metadata` does not list; may be empty
  std::optional<RankRecord> record;                 // record of its first file, if any
  std::vector<std::vector<Container>> files;  // [pp_rank][ep_rank × tp + tp_rank], of the first data-parallel rank
  std::vector<Copy> copies;                   // the same weights, saved by other data-parallel ranks
  bool has_old_metadata = false;              // metadata of stage_pt.h, which does not contain the number of ranks
  std::vector<std::string> not_saved;         // parameters that the metadata lists but no file contains
  bool allows_extra = false;                  // tensors that the model does not have are whole on every rank
  bool lacks_weights = false;                 // only the optimizer's files contain the weights; `files` have no bytes
  std::map<std::string, Dims> uncut;          // shapes in the files of tensors whose last rows are not read
  OldNames old_names;                         // Checkpoint::old_names
  std::uint64_t other_stages = 0;             // tensors that were ignored (remove_other_stages), over all files
  Notes warnings;
};

/// Returns the file that contains the metadata of a pipeline rank. If the metadata is inferred, the path it would have.
std::filesystem::path metadata_path(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank);

/// Reads all headers and metadata and validates that every rank exists, that the ranks of a stage agree in names,
/// shapes and dtypes, and that the metadata, if any, matches these files. With `adapter`, the shards belong to the
/// adapter of that name, and the result contains only the adapter's metadata (AdapterMetadata), read by `metadata` if
/// that is not null. Removes wrappers from the names in files and metadata, except in files that record their ranks.
/// \param model  See take_out_wrappers.
/// \throws Error kBadInput; kUnsupported for expert-parallel ranks whose metadata does not define the distribution of
/// experts, and for adapters that are read as a model.
ShardedCheckpoint read_sharded_checkpoint(Files& files, const FoundLayout& folder,
                                          const std::optional<std::string>& adapter = {},
                                          AdapterMetadataReader* metadata = nullptr, KnownModel model = {nullptr});

/// Cuts the padding off the rows of a rule's tensor in all files, so that it is not read: training may have changed it.
/// No-op unless the ranks share the rows of one parameter.
/// \returns the number of rows of padding, over the ranks.
std::uint64_t cut_padding(ShardedCheckpoint& shards, PartitionRule& rule);

}  // namespace reshard
