// The optimizer of a training checkpoint where NxD has saved it through torch.distributed.checkpoint (use_zero1_dcp):
// optim/ is such a directory. NxD writes it in optimizer/zero_dcp_utils.py.
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

/// What an optimizer's state is called that NxD saves through torch.distributed.checkpoint:
/// "base_state.PARAMETER.STATE|pp-0000|tp-0000" (NxD's trainer/checkpoint.py, use_zero1_dcp). Each rank may be absent.
struct DcpStateKey {
  std::string parameter;
  std::string state;  // without dots
  std::optional<std::uint32_t> pp_rank, tp_rank;
};

/// The parts of a state's name; std::nullopt for any other name.
std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name);

/// Reads what `folder` holds: entries are called by names ("base_state.<parameter>.exp_avg|pp-0000|tp-0000", the ranks
/// only where there are several), each is a tensor- and pipeline-parallel rank's local tensor, and its chunks are the
/// rows of data-parallel ranks, of which the last ones have no padding. How many there are, the chunks say. NxD can
/// name the parameters of one group alone. What is stored once for several ranks (steps, groups, with `dedup` the
/// replicated parameters) is the first rank's.
/// \throws Error kBadInput, naming `.metadata`, the entry and the numbers, for what is no optimizer's, ranks that are
///         missing or not the model's, and chunks that are no shards; kUnsupported for hyperparameters that are no plain
///         values; as read_dcp_directory and DcpChunkFinder do.
OptimizerFiles read_optimizer_dcp(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards);

}  // namespace reshard
