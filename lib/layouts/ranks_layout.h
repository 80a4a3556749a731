#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/layout.h"
#include "reshard/specs/mesh.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {

/// The folder of the `ranks` layout: `tensor_parallel_shards/tp_rank_XX_pp_rank_YY/model.safetensors`, with a metadata
/// file a pipeline rank beside them.
inline constexpr const char* kShardsFolder = "tensor_parallel_shards";

struct RankId {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
};

/// "tp_rank_03_pp_rank_00": at least two digits each.
std::string rank_folder_name(RankId rank);
/// The numbers of such a name, of any width, or nothing.
std::optional<RankId> rank_of_folder(std::string_view name);

/// The checkpoint that `plans` describe (one a pipeline rank), over `tp` tensor-parallel ranks, of the logical tensors
/// in `source`. Paths are relative to the output directory.
/// \throws Error kBadInput if the originals of one joined tensor differ in dtype.
Layout ranks_target_layout(const std::vector<StagePlan>& plans, std::uint32_t tp, const Layout& source);

/// A sharded checkpoint as it stands on disk: complete, and alike over the tensor-parallel ranks of each stage.
struct RanksCheckpoint {
  std::filesystem::path directory;  // the shards folder itself
  std::uint32_t tp = 0;
  std::uint32_t pp = 0;
  std::vector<StageMetadata> metadata;        // [pp_rank]
  std::vector<std::vector<Container>> files;  // [pp_rank][tp_rank]
};

/// The shards folder meant by `path`: itself, or the one inside it; nothing if there is none.
std::optional<std::filesystem::path> find_shards_folder(const std::filesystem::path& path);

/// The checkpoint's own directory, where config.json is: `path`, or the one above it if it is the shards folder itself.
std::filesystem::path parent_of_shards(const std::filesystem::path& path, const std::filesystem::path& shards_folder);

/// Reads all headers and metadata and proves that every rank is there, that the ranks of a stage agree in names, shapes
/// and dtypes, and that the metadata is about these files.
/// \throws Error kBadInput; kUnsupported for folders in another format.
RanksCheckpoint read_ranks_checkpoint(const std::filesystem::path& shards_folder);

/// Its layout. `tied` says which parameters may be second copies of others; one that the metadata does not list and
/// that is not tied either is an error, as is a listed one that no file holds. `checkpoint` is borrowed for the call.
Layout ranks_source_layout(const RanksCheckpoint& checkpoint, const std::vector<TiedParameter>& tied);

}  // namespace reshard
