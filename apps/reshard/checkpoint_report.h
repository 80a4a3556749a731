#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard::cli {

/// A logical tensor as inspect reports it.
struct TensorReport {
  std::uint32_t logical = 0;  // index into the checkpoint's map
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  PartitionLabel label = PartitionLabel::kWhole;
  std::string stored_as;                // its name in the files if that differs (with a mesh, only the end), or empty
  std::vector<std::uint64_t> pp_ranks;  // ascending
  std::optional<ValueSummary> values;
  std::optional<TensorDigest> digest;

  std::uint64_t size_bytes() const { return num_bytes(dtype, shape).value_or(0); }
};

/// Order of tensors in a report (--sort).
enum class TensorOrder : std::uint8_t {
  kStored,
  kSize,   // largest first
  kName,   // numbers in names by value
  kLayer,  // by the first number in the name; tensors without one come first
};
/// Sorts tensors; equal tensors keep their order.
void sort_tensors(std::vector<TensorReport>& tensors, TensorOrder order);

/// Sums over tensors.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t elems = 0;
  std::uint64_t bytes = 0;

  void add(DType dtype, const Dims& shape);
};

/// Size of a rank's data in a sharded checkpoint.
struct RankBytes {
  std::uint32_t pp_rank;
  std::uint32_t ep_rank;
  std::uint32_t tp_rank;
  std::uint64_t bytes;
};

/// A checkpoint as inspect reports it.
struct CheckpointReport {
  std::string path;       // as given, or the checkpoint found there
  std::string directory;  // the checkpoint's directory
  std::string kind;       // "file", or LayoutTraits::reported_as
  std::string layout;     // LayoutTraits::name; empty for a single file
  std::vector<std::string> adapters;
  Format format = Format::kSafetensors;
  std::string model_type;    // empty if unknown, as is the next
  std::string quant_method;  // how the model is quantised
  bool has_ranks = false;
  std::optional<RankRecord> record;  // which rank a single file belongs to, if it says so
  std::optional<Mesh> mesh;
  std::vector<RankBytes> ranks;  // if it has a mesh
  std::uint64_t tensor_count = 0;
  /// Totals over the tensors that --filter matches, in all and by dtype.
  Totals totals;
  std::map<DType, Totals> by_dtype;
  std::vector<TensorReport> tensors;  // those to list, at most totals.tensors
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<BesideModel> beside_model;
  std::vector<std::pair<std::string, std::uint64_t>> files;  // path and size; once per compressed item
  Notes notes;
};

/// Returns the report on `checkpoint`, with its tensors `wanted` (indices into the map) in that order.
CheckpointReport report_on(const std::string& path, const Checkpoint& checkpoint,
                           const std::vector<std::uint32_t>& wanted);

/// Formats a number with four digits, or as nan, inf or -inf.
std::string number_text(double value);

}  // namespace reshard::cli
