#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json_report.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/tensor/numeric.h"

namespace reshard::cli {

/// One original tensor as inspect tells of it.
struct TensorRow {
  std::uint32_t logical = 0;  // index into the layout
  CutKind kind = CutKind::kWhole;
  std::string stored_as;                // where its name on the ranks is another; else empty
  std::vector<std::uint64_t> pp_ranks;  // ascending
  std::optional<ValueSummary> values;
};

/// The tensors that `wanted` names (indices into the layout), with how they are laid out.
std::vector<TensorRow> tensor_rows(const Layout& layout, const std::vector<std::uint32_t>& wanted);

/// For people: what it is, its tensors (names over layers folded unless `each`), the ranks and how even they are.
std::string inspect_text(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& rows,
                         bool each);

/// For machines. Always lists every tensor of `rows`.
Document inspect_document(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& rows);

/// What a directory or file turned out to be: "file", "huggingface", "ranks".
const char* what_name(const Checkpoint& checkpoint);

}  // namespace reshard::cli
