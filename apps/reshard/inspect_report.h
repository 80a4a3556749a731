#pragma once

#include <string>
#include <vector>

#include "inspection.h"

namespace reshard::cli {

/// For people: what it is, its tensors (names over layers folded unless `each`), the ranks and how even they are.
std::string inspect_text(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& rows,
                         bool each);

/// A line for each of several sharded adapters in a directory.
std::string adapters_text(const std::string& path, const std::vector<Checkpoint>& adapters);

}  // namespace reshard::cli
