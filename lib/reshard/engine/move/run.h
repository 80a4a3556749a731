// engine/: runs a program: processes logical tensors in blocks, reads each source byte once, writes long runs, and
// publishes the outputs when all are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "reshard/engine/move/run_options.h"
#include "reshard/engine/units/share.h"
#include "reshard/engine/units/share_report.h"
#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// A block of a logical tensor: a range of its elements in C order that begins with `first_elem`. `transfer` is the
/// index into Program::transfers, and `block` counts the blocks of that tensor. `against` contains the same block of
/// ProgramMaps::against, in that map's dtype; empty if the transfer compares nothing. A BlockVisitor is called once per
/// block, from several threads.
struct VisitedBlock {
  std::size_t transfer = 0;
  std::uint64_t block = 0;
  std::uint64_t first_elem = 0;
  std::span<const std::byte> bytes;
  std::span<const std::byte> against;
};
using BlockVisitor = std::function<void(const VisitedBlock& block)>;

/// Moves the bytes of `program` into files under `target_root`, which exist at their full size. Output bytes depend
/// only on the program, not on threads or memory. `maps` belong to the program. A visitor's blocks have
/// `visit_block_bytes` bytes, whatever the memory.
/// \returns the CRC-32 of each stored tensor of the target whose file needs it, in the order of TensorMap::stored;
/// empty if no file needs it.
/// \throws Error kBadInput if a check finds different bytes (naming both tensors and the first element that differs);
/// kIo, kNoSpace; kInterrupted; kUsage if max_memory_bytes is less than kMinMemoryBytes, or too small for a computed
/// tensor's inputs.
std::vector<std::uint32_t> run_program(const ProgramMaps& maps, const Program& program,
                                       const std::filesystem::path& target_root, const RunOptions& options,
                                       const BlockVisitor& visitor = {}, std::uint64_t visit_block_bytes = 0);

/// Runs one share of a program as run_program runs all of it. Shares may run at the same time and in any order, in one
/// process or several. The share that contains an element also checks its replicas. Does not call
/// `options.on_divergence`. With RunOptions::digests, shares consist of whole leaves.
/// \throws Error as run_program; kUsage for a share that does not exist, or too little memory for a leaf.
ShareReport run_share(const ProgramMaps& maps, const Program& program, const Share& share,
                      const std::filesystem::path& target_root, RunOptions options);
/// The same for parts of any units.
ShareReport run_parts(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                      const std::filesystem::path& target_root, RunOptions options);

}  // namespace reshard
