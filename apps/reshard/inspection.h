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

/// One original tensor as inspect reports it.
struct TensorRow {
  std::uint32_t logical = 0;  // index into the map
  PartitionLabel label = PartitionLabel::kWhole;
  std::string stored_as;  // its name in the files where that is another, of a mesh's only the end; or empty
  std::vector<std::uint64_t> pp_ranks;  // ascending
  std::optional<ValueSummary> values;
  std::optional<TensorDigest> digest;
};

/// The tensors that `wanted` names (indices into the checkpoint's map), with how they are laid out.
std::vector<TensorRow> tensor_rows(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& wanted);

/// Sums over tensors.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t elems = 0;
  std::uint64_t bytes = 0;

  void add(const LogicalTensor& tensor);
};
Totals totals_of(const SourceMap& map, const std::vector<TensorRow>& rows);
/// Those of the whole state dict.
Totals totals_of(const SourceMap& map);
std::map<DType, Totals> totals_by_dtype(const SourceMap& map, const std::vector<TensorRow>& rows);

/// What each rank of a sharded checkpoint holds, by pipeline rank.
struct RankBytes {
  std::uint32_t pp_rank;
  std::uint32_t ep_rank;
  std::uint32_t tp_rank;
  std::uint64_t bytes;
};
std::vector<RankBytes> rank_bytes(const SourceMap& map);

/// What a directory or file turned out to be: "file", or LayoutTraits::reported_as.
const char* what_name(const Checkpoint& checkpoint);

/// Four digits, or nan, inf, -inf.
std::string number_text(double value);

}  // namespace reshard::cli
