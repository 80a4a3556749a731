#pragma once

#include <string>
#include <vector>

#include "checkpoint_report.h"

namespace reshard::cli {

/// How the report for people shows tensors.
struct TensorView {
  bool each = false;  // one line per tensor, instead of one for all layers
  TensorOrder order = TensorOrder::kStored;
  std::size_t limit = SIZE_MAX;  // maximum number of lines
};

/// Returns the report for people: the kind of checkpoint, its tensors (names folded over layers unless `view.each`), its
/// ranks and their balance.
std::string inspect_text(const CheckpointReport& report, const TensorView& view);

/// Returns one line for each of several sharded adapters in a directory.
std::string adapters_text(const std::string& path, const std::vector<CheckpointReport>& adapters);

}  // namespace reshard::cli
