#pragma once

#include <filesystem>

#include "reshard/base/error.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Reads the requested parts of the optimizer's files in `folder`: states, master weights.
/// \throws Error kBadInput, kUnsupported, kUsage or kIo.
void read_optimizer_beside(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
                           const ReadContext& context, Checkpoint& checkpoint);

/// Called if the model's files do not match config.json. Adds a hint to `error` if the optimizer's files in `folder`
/// belong to more ranks.
void hint_at_lost_ranks(Files& files, const std::filesystem::path& folder, const ShardedCheckpoint& shards,
                        Error& error);

/// NxD's optimizer in `folder`.
constexpr RankOptimizer optimizer_in(const char* folder) {
  return {folder, read_optimizer_beside, hint_at_lost_ranks};
}

}  // namespace reshard
