#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard::cli {

/// A logical tensor as inspect reports it.
struct TensorRow {
  std::uint32_t logical = 0;  // index into the map
  PartitionLabel label = PartitionLabel::kWhole;
  std::string stored_as;                // its name in the files if that differs (with a mesh, only the end), or empty
  std::vector<std::uint64_t> pp_ranks;  // ascending
  std::optional<ValueSummary> values;
  std::optional<TensorDigest> digest;
};

/// Returns a row for each logical tensor in `wanted` (indices into the checkpoint's map).
std::vector<TensorRow> tensor_rows(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& wanted);

/// Order of tensors in a report (--sort).
enum class TensorOrder : std::uint8_t {
  kStored,
  kSize,   // largest first
  kName,   // numbers in names by value
  kLayer,  // by the first number in the name; tensors without one come first
};
/// Sorts rows; equal rows keep their order.
void sort_rows(const SourceMap& map, std::vector<TensorRow>& rows, TensorOrder order);

/// Which tensors a report shows, and how.
struct TensorView {
  bool each = false;  // one line per tensor, instead of one for all layers
  TensorOrder order = TensorOrder::kStored;
  std::size_t limit = SIZE_MAX;  // maximum number of lines
};

/// Sums over tensors.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t elems = 0;
  std::uint64_t bytes = 0;

  void add(const LogicalTensor& tensor);
};
Totals totals_of(const SourceMap& map, const std::vector<TensorRow>& rows);
/// Totals of the whole state dict.
Totals totals_of(const SourceMap& map);
std::map<DType, Totals> totals_by_dtype(const SourceMap& map, const std::vector<TensorRow>& rows);

/// Size of a rank's data in a sharded checkpoint.
struct RankBytes {
  std::uint32_t pp_rank;
  std::uint32_t ep_rank;
  std::uint32_t tp_rank;
  std::uint64_t bytes;
};
std::vector<RankBytes> rank_bytes(const SourceMap& map);

/// Kind of checkpoint or file: "file", or LayoutTraits::reported_as.
const char* what_name(const Checkpoint& checkpoint);

/// Formats a number with four digits, or as nan, inf or -inf.
std::string number_text(double value);

}  // namespace reshard::cli
