#pragma once

#include <string>
#include <vector>

#include "inspection.h"

namespace reshard::cli {

/// For people: what it is, its tensors (names over layers folded unless `each`), the ranks and how even they are.
std::string inspect_text(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& rows,
                         bool each);

}  // namespace reshard::cli
