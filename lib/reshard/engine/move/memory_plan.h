#pragma once

#include <cstdint>

#include "reshard/engine/move/block_queue.h"
#include "reshard/engine/move/run.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// How a run shares its memory. Memory takes precedence over threads: if it is scarce, fewer of them work, each on blocks
/// that are still worth a system call.
struct MemoryPlan {
  unsigned threads = 1;
  BlockSizes blocks;
};

/// \param visit_block_bytes  size of the blocks that a visitor gets, or of leaves; 0 if any size will do.
/// \param is_visited         whether a visitor gets the blocks.
/// \throws Error kUsage if RunOptions::max_memory_bytes is too little, with what suffices.
MemoryPlan plan_memory(const ProgramMaps& maps, const Program& program, const RunOptions& options,
                       std::uint64_t visit_block_bytes, bool is_visited);

}  // namespace reshard
