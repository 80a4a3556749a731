#pragma once

#include <vector>

#include "reshard/plan/job/program.h"

namespace reshard {

// Parameters that are stored side by side in the columns of one tensor, such as gate_proj and up_proj of experts, are
// many short runs each, and one long run together. The engine moves them together.

/// Whether both write short runs to the same stored tensor, between each other: written together, they form longer
/// runs. Looks at the first piece of each.
bool interleave(const ProgramMaps& maps, const Transfer& a, const Transfer& b);

/// Moves each transfer behind the first one with which it interleaves.
void join_interleaving(std::vector<Transfer>& transfers, const ProgramMaps& maps);

}  // namespace reshard
