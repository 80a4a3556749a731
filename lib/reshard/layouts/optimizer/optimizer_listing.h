// The optimizer's files of a training checkpoint that NxD or optimum-neuron saved: optim/ next to model/ or, in NxD's
// older folders, the files of the weights or their sibling files (older_optimizer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/states/optimizer_stage.h"

namespace reshard {

struct ShardedCheckpoint;

/// One file of the optimizer and the rank in its name.
struct OptimizerFileName {
  RankId rank;
  std::filesystem::path path;
  bool is_full = false;             // merged from data-parallel ranks by NxD's converter (convert_zero_checkpoints)
  NumberedName name = kDpRankName;  // name pattern of such files, for errors
};

void sort_by_rank(std::vector<OptimizerFileName>& names);

/// Returns the optimizer's files in `folder`, sorted by rank; none if the folder does not exist.
/// \throws Error like list_older_optimizer.
std::vector<OptimizerFileName> list_optimizer_files(Files& files, const std::filesystem::path& folder);

/// Whether the folder has optimizer files. Ignores errors in them.
/// \throws Error kIo.
bool has_optimizer_files(Files& files, const std::filesystem::path& folder);

/// The optimizer's states by pipeline stage and parameter, each in shards of tensor- and data-parallel ranks. The
/// shards come from one file per rank or are chunks that torch.distributed.checkpoint saved (optimizer_dcp.h). In the
/// latter case, entries have names, shards are not padded, and tensors that are stored once for several ranks are
/// attributed to the first rank.
/// Invariant: all stages have the same form and the same hyperparameters in the same groups.
struct OptimizerFiles {
  std::filesystem::path folder;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t ep = 1;
  std::uint32_t dp = 1;                      // number of data-parallel ranks that have shards
  std::vector<OptimizerStage> stages;        // [pp_rank]; StateShard::rank is tp_rank × dp + dp_rank
  std::vector<std::filesystem::path> paths;  // [pp_rank × ranks() + rank]; a single one without rank files
  std::set<std::string> others;              // unknown keys of files
  bool is_xser = false;
  bool is_full = false;
  bool has_masters = false;
  bool lost_masters = false;      // if is_full: some master weights are lost, so none are used
  std::vector<SourceFile> files;  // files of all tensors, indexed by TensorEntry::file
  std::size_t file_count = 0;     // number of `files`; the xser files of a rank count as one
  Notes notes;                    // unusual findings
  /// Why the states are incomplete although the files are what the reference writes, as a clause; empty if they are
  /// complete. `incomplete_hint` suggests a solution.
  std::string incomplete;
  std::string incomplete_hint;

  /// The number of ranks of a stage that have their own shards.
  std::uint32_t ranks() const { return tp * dp; }
  /// Path of a rank's file, for errors.
  const std::filesystem::path& path_of(std::size_t pp_rank, std::size_t rank) const {
    return paths.size() == 1 ? paths.front() : paths[pp_rank * ranks() + rank];
  }
  OptimizerStage::Form form() const { return stages.front().form; }
  /// Whether entries have the names of their parameters instead of ids.
  bool has_names() const { return !stages.front().entries.empty() && !stages.front().entries.front().name.empty(); }
};

/// How `count` data-parallel ranks share the rows of a tensor, and the number of this rank's shard.
struct ShareOfRows {
  std::uint64_t count = 1;
  std::uint64_t number = 0;
};

/// Returns how data-parallel rank `dp_rank` shares an entry. Entries of experts are shared only by the ranks that have
/// these experts.
ShareOfRows share_of_rows(const OptimizerFiles& files, const OptimizerStage& stage, std::uint32_t entry,
                          std::uint32_t dp_rank);

/// Reads the headers of the files `names`, which must not be empty, and validates them against each other and the mesh
/// of `shards`: every rank exists once, and every shard has the rows that shape_info and the number of ranks imply.
/// \throws Error kBadInput, naming the file, the id and the numbers, also for more than 64 names of states; like
/// read_optimizer_file.
OptimizerFiles read_optimizer_files(Files& files, const std::filesystem::path& folder,
                                    const std::vector<OptimizerFileName>& names, const ShardedCheckpoint& shards);

/// Reads the optimizer in `folder`: rank files, or a directory of torch.distributed.checkpoint. Returns std::nullopt if
/// there is neither.
/// \throws Error kBadInput if both exist; like read_optimizer_files or read_optimizer_dcp.
std::optional<OptimizerFiles> read_optimizer(Files& files, const std::filesystem::path& folder,
                                             const ShardedCheckpoint& shards);

}  // namespace reshard
