#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/tensor/cast/compare.h"

namespace reshard {

/// A tensor of both checkpoints whose values differ.
struct TensorDifference {
  std::string name;
  std::uint64_t differing = 0;  // elements
  std::uint64_t elems = 0;
  Dims first;          // index of the first element that differs
  std::string a, b;    // its values, in enough digits to show the difference
  double max_abs = 0;  // largest absolute difference
};

/// Result of comparing two checkpoints. Names are in the order of the checkpoint that contains them.
struct Verification {
  std::uint64_t compared_tensors = 0;
  std::uint64_t compared_bytes = 0;  // bytes of one of the two checkpoints
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<std::string> other_form;  // "NAME: BF16 [2, 3] and F32 [2, 3]"
  std::vector<TensorDifference> different;

  bool same() const { return only_a.empty() && only_b.empty() && other_form.empty() && different.empty(); }
};

/// Options for comparing two checkpoints.
struct VerifyOptions {
  /// If set, compares values, and dtypes may differ. Otherwise compares bytes, and a tensor's dtypes must be equal, or
  /// one must be the model's dtype (LogicalTensor::model_dtype), to which the other is cast.
  std::optional<Tolerance> tolerance;
};

/// Compares the logical tensors of two maps: names, shapes, dtypes and values.
/// Reads each byte of comparable tensors once. Checks replicas within each checkpoint as any other run does.
/// \throws Error as run_program does.
Verification verify(const SourceMap& a, const SourceMap& b, const VerifyOptions& how, const RunOptions& options);
/// The same, distributed over ranks: each rank reads some of the tensors, and all ranks get all differences.
/// \throws as read_together.
Verification verify(const SourceMap& a, const SourceMap& b, const VerifyOptions& how, const RunOptions& options,
                    Together& together);

}  // namespace reshard
