#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Whether replicas of this dtype can drift: bfloat16. Training in float32 keeps replicas equal.
bool can_drift(DType dtype);

/// How far two replicas of one tensor are apart, and whether they are one tensor whose ranks drifted apart in training.
/// Values add up part by part; the parts in one order give the same sums always.
///
/// NxD without sequence parallelism trains replicated parameters (norms) of a bfloat16 model with gradients that the
/// tensor-parallel ranks do not share (parallel_layers/layers_utils.py, _linear_autograd_bwd_grad_reduce, 0.18), so
/// that each rank's replica takes steps of its own. Measured (docs/replicas.md): drift reaches 0.02 of the tensor's
/// length after 1000 steps of fine-tuning at a rate of 1e-4; in a model of another training run, the norm that is
/// farthest is 0.11 and more away. Norms resemble each other, so that replicas far beyond the limit are refused though
/// a long training at a high rate may have led them there.
class ReplicaDistance {
 public:
  /// Replicas of one tensor are apart by less than this part of the longer one's length (relative()) ...
  static constexpr double kMaxRelative = 0.05;
  /// ... and no element by this part of the tensor's root mean square, or of the larger one of the element's values.
  static constexpr double kMaxElement = 0.25;

  /// \param a, b  elements of `dtype`, a float of 16 bits and more; as many on both sides.
  /// \returns the index of the first of them that differs.
  std::optional<std::uint64_t> add(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b);

  /// Elements whose values differ; NaN is the same as NaN here.
  std::uint64_t differing() const { return differing_; }
  /// The largest |a - b|; infinity where one of the two is no finite number and the other is not the same.
  double max_abs() const { return max_abs_; }
  /// The Euclidean length of a - b by that of the longer of the two.
  double relative() const;
  /// True also for replicas that do not differ.
  bool is_drift() const;

 private:
  std::uint64_t elems_ = 0;
  std::uint64_t differing_ = 0;
  double a_squares_ = 0;
  double b_squares_ = 0;
  double squares_ = 0;  // of a - b
  double max_abs_ = 0;
  double max_element_ = 0;  // the largest |a - b| by the larger of |a| and |b|
};

}  // namespace reshard
