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

/// Marker files next to shards: a save has begun, a save is complete. Their text is "1" (optimum-neuron, NxD).
inline constexpr const char* kCheckpointMarker = "checkpoint";
inline constexpr const char* kDoneMarker = "done";

/// A rank's state dict in a folder of its own, as NxD's older trainers save it (parallel_layers/checkpointing.py).
inline constexpr const char* kRankCheckpointFile = "checkpoint.pt";

/// The names of ranks that are read, with the keys "dp", "ep", "tp" and "pp"; files of torch.save have an ending.
inline constexpr NumberedName kRankName("<[dp_rank_{dp:2}]|[ep_rank_{ep:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>",
                                        kMaxParallelDegree - 1);
inline constexpr NumberedName kRankFileName("<[dp_rank_{dp:2}]|[ep_rank_{ep:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>.pt",
                                            kMaxParallelDegree - 1);
/// The names of ranks that NxD writes, which say the data-parallel rank.
inline constexpr NumberedName kDpRankName("dp_rank_{dp:2}_[ep_rank_{ep:2}_]tp_rank_{tp:2}_pp_rank_{pp:2}");

/// The numbers in the names of a rank's files, by the keys "tp", "pp", "dp" and "ep".
NameNumbers numbers_of(RankId rank);
/// The rank with these numbers; those that a name lacks are 0.
RankId rank_of(const NameNumbers& numbers);

/// "tp_rank_03_pp_rank_00", at least two digits each. With experts "ep_rank_01_" precedes "tp_rank" (NxD), with
/// `dp` "dp_rank_00_" before all.
std::string rank_name(RankId rank, bool dp);
/// The numbers of a name made of `dp_rank_N`, `ep_rank_N`, `tp_rank_N` and `pp_rank_N` in any order and of any width;
/// tp and pp must be there. std::nullopt for any other name.
std::optional<RankId> rank_of_name(std::string_view name);

/// One rank's weights on disk.
struct RankFile {
  RankId rank;
  std::filesystem::path path;
  Format format = Format::kSafetensors;
  std::optional<std::uint32_t> part;              // number of this file, if the layout's ranks may have several
  std::vector<std::filesystem::path> more_parts;  // the files after it
};

/// The format of a file that torch saved: xser if the folder of its tensors is next to it.
Format torch_format_of(Files& files, const std::filesystem::path& path);

/// The optimizer in NxD's files next to the weights, and who reads it.
struct RankOptimizer {
  const char* folder;  // in the shards folder; empty for the shards folder itself
  /// Reads the files in `folder`. \throws as Layout::read.
  void (*read)(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
               const ReadContext& context, Checkpoint& checkpoint);
  /// Adds to `error`, that the weights do not fit config.json, what the files in `folder` show.
  void (*explain_misfit)(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
                         Error& error);
};

/// Explains shards without metadata by the model that config.json describes, which is the default of
/// RankFormat::explain.
void explain_by_config(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// How a layout of rank files names, stores and explains them. Members that may be null say so.
struct RankFormat {
  NumberedName name;                            // names a rank in errors, and begins the name of its file or folder
  NumberedName ending;                          // ends that name
  NumberedName read;                            // the names that are read
  std::span<const char* const> shards_folders;  // that may contain shards, in a checkpoint's directory; the usual first
  const char* weights_folder = "";              // in the shards folder; empty for the shards folder itself
  const char* own_folder = nullptr;             // a folder of this name can only be one of this layout
  std::span<const char* const> files_in_folder;  // by Format, of a rank that is a folder; empty if all are files
  std::optional<RankOptimizer> optimizer;

  bool has_xser_info = true;           // xser's rank files have PATH.info.pt next to them
  bool keeps_names = true;             // tensors that are not fused have the checkpoint's own names
  bool ranks_are_alike = true;         // all tensor-parallel ranks of a stage store the same shapes
  bool chooses_fused_linears = false;  // in torch's files; a conversion keeps the choice

  /// What a rank file of `stage` contains; null, or returns null, for the state dict alone. `tensors` are its names in the order in
  /// which they are stored, `aliases` further names of some of them.
  std::shared_ptr<const SavedValue> (*saved_form)(Format format, const StageMetadata& stage,
                                                  const std::vector<std::string>& tensors,
                                                  const std::vector<TensorAlias>& aliases) = nullptr;
  /// Distinguishes this layout from others with the same names of files; null if it fits any.
  bool (*fits)(const ShardedCheckpoint& shards) = nullptr;
  /// Explains shards without metadata by `checkpoint.model` and the source's `options`: fills `shards.metadata` or
  /// `shards.rules`. \throws Error kBadInput if the model does not explain them.
  void (*explain)(Files& files, const OptionValues& options, ShardedCheckpoint& shards,
                  Checkpoint& checkpoint) = explain_by_config;
  /// What to try if replicas differ, and nothing but replicas shows that the partition is right.
  const char* hint_for_replicas =
      "as there is no metadata, replicas alone confirm the partition, and `replicas` first has no effect: files "
      "of ranks were swapped or come from different checkpoints, or config.json belongs to another model";

  /// A rank as errors name it.
  std::string name_of(RankId rank) const { return name.print(numbers_of(rank)); }
  /// The numbers in the name of a rank's file or folder; std::nullopt for other names.
  std::optional<NameNumbers> numbers(std::string_view file_name) const;
  /// The folder that contains the rank files of a shards folder.
  std::filesystem::path weights_in(const std::filesystem::path& shards) const;
  /// The folder of the optimizer's files; std::nullopt if the layout has none.
  std::optional<std::filesystem::path> optimizer_in(const std::filesystem::path& shards) const;
  /// Whether `directory` is a shards folder of such ranks, by the names in it.
  bool looks_like(Files& files, const std::filesystem::path& directory) const;
};

/// The ranks of a found checkpoint, whose layout has some.
inline const RankFormat& ranks_of(const FoundLayout& found) {
  return *found.layout->ranks();
}

/// Path of a rank's weights, or of one of several files of these, relative to the output directory.
std::filesystem::path rank_path(const Layout& layout, Format format, RankId rank, std::uint32_t part = 0);

/// As Layout::recognise, for a layout with ranks.
std::vector<FoundLayout> recognise_ranks(Files& files, const Layout& layout, const std::filesystem::path& path);

/// The weights in a found checkpoint, by rank.
/// \throws Error kBadInput for a rank that is there twice, or has no weights.
std::vector<RankFile> list_rank_files(Files& files, const FoundLayout& found);

}  // namespace reshard
