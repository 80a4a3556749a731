#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/formats/format.h"

namespace reshard {

/// The forms of a directory of shards (optimum-neuron and NxD, which save them). By the names of files alone, as
/// find_shards_folder tells them, nxdi is presharded, and nxd an optimum that lacks its metadata.
enum class ShardsKind : std::uint8_t {
  kRanks,       // tensor_parallel_shards/tp_rank_XX_pp_rank_YY/…, NxD's first form
  kOptimum,     // shards/model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt, what optimum-neuron writes today
  kPresharded,  // weights/tpR_sharded_checkpoint.safetensors, what NxD's shard_checkpoint writes for inference
  kNxdi,        // the same files with the names and heads of NxD Inference (save_sharded_checkpoint)
  kNxd,         // model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt without metadata, what NxD's training converter writes
};

struct ShardsKindRow {
  ShardsKind kind;
  const char* name;    // --layout
  const char* folder;  // of the shards, in the checkpoint's own directory
  bool whole;          // the folder is replaced as a whole; else file by file: several runs may each write some ranks
  bool has_metadata;   // mp_metadata_pp_rank_Y.json stands beside the weights
  bool torch_only;     // its files are torch's
  bool deployed;       // for inference: one safetensors file a rank, without stages
};
inline constexpr ShardsKindRow kShardsKinds[] = {
    {ShardsKind::kRanks, "ranks", "tensor_parallel_shards", true, true, false, false},
    {ShardsKind::kOptimum, "optimum", "shards", true, true, true, false},
    {ShardsKind::kPresharded, "presharded", "weights", false, false, false, true},
    {ShardsKind::kNxdi, "nxdi", "weights", false, false, false, true},
    {ShardsKind::kNxd, "nxd", "model", true, false, true, false},
};
constexpr const ShardsKindRow& describe(ShardsKind kind) {
  return kShardsKinds[static_cast<std::size_t>(kind)];
}

/// The folder inside `optimum`'s shards that holds the weights.
inline constexpr const char* kOptimumModelFolder = "model";
/// Marker files of `optimum`: a save has begun, a save is complete. Their text is "1".
inline constexpr const char* kCheckpointMarker = "checkpoint";
inline constexpr const char* kDoneMarker = "done";

/// Beside each other in a checkpoint's directory: adapter_NAME/adapter_shards, in the form of `optimum`.
inline constexpr std::string_view kAdapterFolderPrefix = "adapter_";
inline constexpr const char* kAdapterShardsFolder = "adapter_shards";
/// What `optimum` writes beside its shards: how they are cut.
inline constexpr const char* kTrainingConfigFile = "trn_config.json";

struct RankId {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t dp_rank = 0;  // copies of the same weights
  std::uint32_t ep_rank = 0;
  bool has_ep = false;  // experts are spread, and names say over which rank

  friend auto operator<=>(const RankId&, const RankId&) = default;
};

/// "tp_rank_03_pp_rank_00", "dp_rank_00_tp_rank_03_pp_rank_00" (at least two digits each), or "tp3_sharded_checkpoint".
/// With experts "ep_rank_01_" stands before "tp_rank" (NxD).
std::string rank_name(ShardsKind kind, RankId rank);
/// The numbers of a name made of `dp_rank_N`, `ep_rank_N`, `tp_rank_N` and `pp_rank_N` in any order and of any width;
/// tp and pp must be there. Nothing for any other name.
std::optional<RankId> rank_of_name(std::string_view name);

/// The number in "tp3_sharded_checkpoint.safetensors"; nothing for any other name.
std::optional<RankId> presharded_rank(std::string_view file_name);

/// Where a rank's weights go, relative to the output directory. Some kinds have no safetensors, some only them.
std::filesystem::path rank_path(ShardsKind kind, Format format, RankId rank);

/// One rank's weights as they stand on disk.
struct RankFile {
  RankId rank;
  std::filesystem::path path;
  Format format = Format::kSafetensors;
};

/// A folder of shards.
struct ShardsFolder {
  ShardsKind kind = ShardsKind::kRanks;
  std::filesystem::path path;
  std::filesystem::path parent;  // the checkpoint's own directory, where config.json is
};

/// The shards folder meant by `path`: itself, or the one inside it; nothing if there is none.
/// \throws Error kBadInput if there are two.
std::optional<ShardsFolder> find_shards_folder(const std::filesystem::path& path);

/// The shards of one LoRA adapter.
struct AdapterFolder {
  std::string name;     // as its folder says; empty if that is not called adapter_NAME
  ShardsFolder shards;  // `parent` is where adapter_config.json is
  bool alone = false;   // the path that was given is this one adapter's
};

/// The adapters meant by `path`: its own if it is adapter_NAME or adapter_shards, else those of all its adapter_NAME
/// folders, sorted by name. Empty if there are none.
std::vector<AdapterFolder> find_adapter_folders(const std::filesystem::path& path);

/// The weights in it, by rank.
/// \throws Error kBadInput for a rank that is there twice, or has no weights.
std::vector<RankFile> list_rank_files(const ShardsFolder& folder);

/// What a shards folder holds that this program does not write, sorted; names relative to it.
std::vector<std::string> foreign_entries(const std::filesystem::path& folder);

}  // namespace reshard
