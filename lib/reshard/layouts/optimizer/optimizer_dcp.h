// The optimizer of a training checkpoint that NxD saved through torch.distributed.checkpoint (use_zero1_dcp): optim/ is
// such a directory. NxD writes it in optimizer/zero_dcp_utils.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"

namespace reshard {

struct ShardedCheckpoint;

/// Name of an optimizer's state that NxD saves through torch.distributed.checkpoint:
/// "base_state.PARAMETER.STATE|pp-0000|tp-0000" (NxD's trainer/checkpoint.py, use_zero1_dcp). Each rank is optional.
struct DcpStateKey {
  std::string parameter;
  std::string state;  // without dots
  std::optional<std::uint32_t> pp_rank, tp_rank;
};

/// Parses a state's name; std::nullopt for any other name.
std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name);

/// Reads the optimizer in `folder`. Entries have names ("base_state.<parameter>.exp_avg|pp-0000|tp-0000", with ranks
/// only if there are several). Each entry is the local tensor of a tensor- and pipeline-parallel rank, and its chunks
/// are the rows of data-parallel ranks, without padding. The number of data-parallel ranks is inferred from the chunks.
/// NxD can name the parameters of only one group. Tensors that are stored once for several ranks (steps, groups, with
/// `dedup` the replicated parameters) are attributed to the first rank.
/// \throws Error kBadInput, naming `.metadata`, the entry and the numbers, for entries that do not belong to an
/// optimizer, ranks that are missing or not the model's, and chunks that are not shards; kUnsupported for
/// hyperparameters that are not plain values; like read_dcp_directory and DcpChunkFinder.
OptimizerFiles read_optimizer_dcp(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards);

}  // namespace reshard
