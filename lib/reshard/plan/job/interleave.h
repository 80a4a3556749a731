#pragma once

#include <vector>

#include "reshard/plan/job/program.h"

namespace reshard {

// Parameters that are stored side by side in the columns of one tensor, such as gate_proj and up_proj of experts, are
// many short runs each, and one long run together. The engine moves them together.

/// Number of bytes that a transfer writes, to all ranks.
std::uint64_t written_bytes(const ProgramMaps& maps, const Transfer& transfer);

/// Returns how many rows of the first dim form a piece that is best moved whole: it consists of rows, but is stored in
/// another order, and is small. It is one range of the file, alone or with tensors that interleave. 0 if there are no
/// such pieces.
std::uint64_t whole_rows(const ProgramMaps& maps, const Transfer& transfer);

/// Whether both write short runs to the same stored tensor, between each other: written together, they form longer
/// runs. Looks at the first piece of each.
bool interleave(const ProgramMaps& maps, const Transfer& a, const Transfer& b);

/// Moves each transfer behind the first one with which it interleaves.
void join_interleaving(std::vector<Transfer>& transfers, const ProgramMaps& maps);

}  // namespace reshard
