// The optimizer's files of a training checkpoint that NxD or optimum-neuron has saved: optim/ beside model/, or in NxD's
// older folders the files of the weights or others beside them (older_optimizer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/optimizer_file.h"
#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {

struct ShardedCheckpoint;

/// One file of the optimizer, by its name.
struct OptimizerFileName {
  RankId rank;
  std::filesystem::path path;
  bool is_full = false;             // NxD's converter has merged the data-parallel ranks' (convert_zero_checkpoints)
  NumberedName name = kDpRankName;  // of such a file of any rank, for errors
};

/// Those in `folder`, sorted; none if there is no such folder.
/// \throws Error kBadInput for two of one rank, or in two forms.
std::vector<OptimizerFileName> list_optimizer_files(Files& files, const std::filesystem::path& folder);

/// Whether there are any; what is wrong with them is no error here.
/// \throws Error kIo.
bool has_optimizer_files(Files& files, const std::filesystem::path& folder);

/// The optimizer's states by pipeline stage and parameter, each in shards of tensor- and data-parallel ranks: those of a
/// file per rank, or the chunks that torch.distributed.checkpoint has saved (optimizer_dcp.h). There, entries have names,
/// shards are not padded, and the first of several ranks has what is stored once for all.
/// Invariant: all stages have the same form and the same hyperparameters in the same groups.
struct OptimizerFiles {
  std::filesystem::path folder;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t ep = 1;
  std::uint32_t dp = 1;                      // data-parallel ranks that have a part of it
  std::vector<OptimizerStage> stages;        // [pp_rank]
  std::vector<std::filesystem::path> paths;  // [pp_rank × ranks() + rank]; one alone if no rank has a file of its own
  std::set<std::string> others;              // keys of files that nobody here knows
  bool is_xser = false;
  bool is_full = false;
  bool has_masters = false;
  bool lost_masters = false;       // some of them, so that none count: of files that is_full
  std::vector<SourceFile> files;   // of all tensors, which TensorEntry::file counts
  std::size_t file_count = 0;      // of `files`, a rank's xser files counting as one
  std::vector<std::string> notes;  // what is odd, as whole sentences
  /// Why the states are not all there, as a clause, where the files are what the reference writes nonetheless; empty
  /// where they are complete. `incomplete_hint` says what to try.
  std::string incomplete;
  std::string incomplete_hint;

  /// The number of ranks of a stage that have shards of their own.
  std::uint32_t ranks() const { return tp * dp; }
  /// The file of a rank, for errors.
  const std::filesystem::path& path_of(std::size_t pp_rank, std::size_t rank) const {
    return paths.size() == 1 ? paths.front() : paths[pp_rank * ranks() + rank];
  }
  OptimizerStage::Form form() const { return stages.front().form; }
  /// Whether entries have the names of their parameters, and no ids.
  bool has_names() const { return !stages.front().entries.empty() && !stages.front().entries.front().name.empty(); }
};

/// The rows of a tensor's shard, where `count` data-parallel ranks share it, and which rank has the first of them.
struct ShareOfRows {
  std::uint64_t count = 1;
  std::uint64_t number = 0;
};

/// How data-parallel rank `dp_rank` shares an entry: those of experts are shared by the ranks that have these experts.
ShareOfRows share_of_rows(const OptimizerFiles& files, const OptimizerStage& stage, std::uint32_t entry,
                          std::uint32_t dp_rank);

/// Reads the headers of the files `names`, which are not empty, and validates them against each other and the mesh of
/// `shards`: every rank is there, and every shard has the rows that shape_info and the number of ranks give it.
/// \throws Error kBadInput, naming the file, the id and the numbers; for more than 64 names of states; as
///         read_optimizer_file does.
OptimizerFiles read_optimizer_files(Files& files, const std::filesystem::path& folder,
                                    const std::vector<OptimizerFileName>& names, const ShardedCheckpoint& shards);

/// Reads what `folder` holds of an optimizer: files of ranks, or a directory of torch.distributed.checkpoint. Nothing
/// if it holds neither.
/// \throws Error kBadInput if it holds both; as read_optimizer_files or read_optimizer_dcp.
std::optional<OptimizerFiles> read_optimizer(Files& files, const std::filesystem::path& folder,
                                             const ShardedCheckpoint& shards);

}  // namespace reshard
