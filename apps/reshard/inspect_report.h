#pragma once

#include <string>
#include <vector>

#include "inspection.h"

namespace reshard::cli {

/// Returns the report for people: the kind of checkpoint, its tensors (names folded over layers unless `view.each`), its
/// ranks and their balance.
/// \param all   the tensors that are counted.
/// \param rows  those of them to list, in the order of the view.
std::string inspect_text(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& all,
                         const std::vector<TensorRow>& rows, const TensorView& view);

/// Returns one line for each of several sharded adapters in a directory.
std::string adapters_text(const std::string& path, const std::vector<Checkpoint>& adapters);

}  // namespace reshard::cli
