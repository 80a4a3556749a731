// The optimizer's files of a training checkpoint that NxD or optimum-neuron has saved: optim/ beside model/, or in NxD's
// older folders the files of the weights or others beside them (older_optimizer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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

/// What every tensor- and pipeline-parallel rank has of the optimizer and, of ZeRO-1, every data-parallel rank: in a file of
/// its own, or as part of what torch.distributed.checkpoint has saved (optimizer_dcp.h). There, entries have names, shards are
/// not padded, and the first of several ranks has what is stored once for all.
/// Invariant: all have the same form, the same hyperparameters in the same groups, and those of one pipeline rank the
/// same groups of parameters with the same states and numbers.
struct OptimizerFiles {
  std::filesystem::path folder;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t ep = 1;
  std::uint32_t dp = 1;            // data-parallel ranks that have a part of it
  std::vector<OptimizerFile> all;  // [(pp_rank × tp + tp_rank) × dp + dp_rank]
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

  const OptimizerFile& of(std::uint32_t pp_rank, std::uint32_t tp_rank, std::uint32_t dp_rank) const {
    return all[(std::size_t{pp_rank} * tp + tp_rank) * dp + dp_rank];
  }
  OptimizerFile::Form form() const { return all.front().form; }
  /// Whether entries have the names of their parameters, and no ids.
  bool has_names() const { return !all.front().entries.empty() && !all.front().entries.front().name.empty(); }
};

/// The rows of a tensor's shard, where `count` data-parallel ranks share it, and which rank has the first of them.
struct ShareOfRows {
  std::uint64_t count = 1;
  std::uint64_t number = 0;
};

/// How data-parallel rank `dp_rank` shares an entry: those of experts are shared by the ranks that have these experts.
ShareOfRows share_of_rows(const OptimizerFiles& files, const OptimizerFile& file, std::uint32_t entry,
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
