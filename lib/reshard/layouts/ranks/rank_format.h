#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/numbered_name.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

struct ShardedCheckpoint;

/// Marker files next to shards: a save has begun, a save is complete. Their content is "1" (optimum-neuron, NxD).
inline constexpr const char* kCheckpointMarker = "checkpoint";
inline constexpr const char* kDoneMarker = "done";

/// A rank's state dict in its own folder, as NxD's older trainers save it (parallel_layers/checkpointing.py).
inline constexpr const char* kRankCheckpointFile = "checkpoint.pt";

/// Name patterns of ranks for reading, with the keys "dp", "ep", "tp" and "pp". Files of torch.save have an extension.
inline constexpr NumberedName kRankName("<[dp_rank_{dp:2}]|[ep_rank_{ep:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>",
                                        kMaxParallelDegree - 1);
inline constexpr NumberedName kRankFileName("<[dp_rank_{dp:2}]|[ep_rank_{ep:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>.pt",
                                            kMaxParallelDegree - 1);
/// Name pattern of ranks that NxD writes, which includes the data-parallel rank.
inline constexpr NumberedName kDpRankName("dp_rank_{dp:2}_[ep_rank_{ep:2}_]tp_rank_{tp:2}_pp_rank_{pp:2}");

/// Returns the numbers in the names of a rank's files, by the keys "tp", "pp", "dp" and "ep".
NameNumbers numbers_of(RankId rank);
/// Returns the rank with these numbers; missing ones are 0.
RankId rank_of(const NameNumbers& numbers);

/// Returns "tp_rank_03_pp_rank_00", with at least two digits per number. With experts, "ep_rank_01_" precedes "tp_rank"
/// (NxD); with `dp`, "dp_rank_00_" comes first.
std::string rank_name(RankId rank, bool dp);
/// Parses a name that consists of `dp_rank_N`, `ep_rank_N`, `tp_rank_N` and `pp_rank_N`, in any order and of any width.
/// Requires tp and pp. Returns std::nullopt for any other name.
std::optional<RankId> rank_of_name(std::string_view name);

/// One rank's weights on disk.
struct RankFile {
  RankId rank;
  std::filesystem::path path;
  Format format = Format::kSafetensors;
  std::optional<std::uint32_t> part;              // number of this file, if the layout's ranks may have several
  std::vector<std::filesystem::path> more_parts;  // the files after it
};

/// Returns the format of a file that torch saved: xser if the folder of its tensors is next to it.
Format torch_format_of(Files& files, const std::filesystem::path& path);

/// The optimizer in NxD's files next to the weights, and its readers.
struct RankOptimizer {
  const char* folder;  // in the shards folder; empty for the shards folder itself
  /// Reads the files in `folder`. \throws Error like Layout::read.
  void (*read)(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
               const ReadContext& context, Checkpoint& checkpoint);
  /// Adds information about the files in `folder` to `error`, which reports that the weights do not match config.json.
  void (*explain_misfit)(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
                         Error& error);
};

/// Explains shards without metadata by the model that config.json describes. This is the default of
/// RankFormat::explain.
void explain_by_config(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// How a layout of rank files names, stores and explains them.
struct RankFormat {
  NumberedName name;                             // name of a rank in errors, and prefix of its file or folder name
  NumberedName ending;                           // suffix of the file or folder name
  NumberedName read;                             // name pattern for reading
  std::span<const char* const> shards_folders;   // folders of a checkpoint that may contain shards, the usual one first
  const char* weights_folder = "";               // in the shards folder; empty for the shards folder itself
  const char* own_folder = nullptr;              // a folder of this name can only be one of this layout
  std::span<const char* const> files_in_folder;  // by Format, for a rank that is a folder; empty if all ranks are files
  std::optional<RankOptimizer> optimizer;

  bool has_xser_info = true;  // xser's rank files have PATH.info.pt next to them
  bool keeps_names = true;    // names in files, except of fused tensors, are those of the model
  /// Whether a tensor of this name belongs to a module with names of its own, which do not have the model's prefix and
  /// are not those of a stranger; null if there are none.
  bool (*has_own_name)(std::string_view tensor) = nullptr;
  bool ranks_are_alike = true;         // all tensor-parallel ranks of a stage store the same shapes
  bool chooses_fused_linears = false;  // torch files may have fused linears; a conversion keeps the choice

  /// Returns the structure of a rank file of `stage`. Null, or returns null, if the file contains only the state dict.
  /// `tensors` are the names in stored order; `aliases` are further names of some of them.
  std::shared_ptr<const SavedValue> (*saved_form)(Format format, const StageMetadata& stage,
                                                  const std::vector<std::string>& tensors,
                                                  const std::vector<TensorAlias>& aliases) = nullptr;
  /// Distinguishes this layout from others that use the same file names, after all ranks are read; null if it matches
  /// any.
  bool (*fits)(const ShardedCheckpoint& shards) = nullptr;
  /// Explains shards without metadata by `checkpoint.model` and the source's `options`: fills `shards.metadata` or
  /// `shards.rules`. Not called without a model. \throws Error kBadInput if the shards do not match the model.
  void (*explain)(Files& files, const OptionValues& options, ShardedCheckpoint& shards,
                  Checkpoint& checkpoint) = explain_by_config;
  /// What to try if replicas differ and only equal replicas confirm the partition.
  const char* hint_for_replicas =
      "without metadata, only replicas confirm the partition, so `replicas` first has no effect: rank files were "
      "swapped or come from different checkpoints, or config.json belongs to another model";

  /// Returns the name of a rank in errors.
  std::string name_of(RankId rank) const { return name.print(numbers_of(rank)); }
  /// Parses the name of a rank's file or folder; std::nullopt for other names.
  std::optional<NameNumbers> numbers(std::string_view file_name) const;
  /// Returns the folder in a shards folder that contains the rank files.
  std::filesystem::path weights_in(const std::filesystem::path& shards) const;
  /// Returns the folder of the optimizer's files; std::nullopt if the layout has none.
  std::optional<std::filesystem::path> optimizer_in(const std::filesystem::path& shards) const;
  /// Whether the names in `directory` are those of a shards folder of such ranks.
  bool looks_like(Files& files, const std::filesystem::path& directory) const;
};

/// The rank format of a found checkpoint, whose layout must have one.
inline const RankFormat& ranks_of(const FoundLayout& found) {
  return *found.layout->ranks();
}

/// Returns the path of a rank's weights, or of one of their files, relative to the output directory.
std::filesystem::path rank_path(const Layout& layout, Format format, RankId rank, std::uint32_t part = 0);

/// Implements Layout::recognise for a layout with ranks.
std::vector<FoundLayout> recognise_ranks(Files& files, const Layout& layout, const std::filesystem::path& path);

/// Lists the weights in a found checkpoint by rank.
/// \throws Error kBadInput if a rank occurs twice or has no weights.
std::vector<RankFile> list_rank_files(Files& files, const FoundLayout& found);

}  // namespace reshard
