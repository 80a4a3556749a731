#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Whether replicas of this dtype can drift. True for BF16 only: training in float32 keeps replicas equal.
bool can_drift(DType dtype);

/// Distance between two replicas of a tensor. Decides whether they are the same tensor and drifted apart during
/// training. The sums accumulate part by part; the same order of parts always returns the same sums.
///
/// NxD without sequence parallelism trains replicated parameters (norms) of a bfloat16 model with gradients that are
/// not reduced over the tensor-parallel ranks (parallel_layers/layers_utils.py, _linear_autograd_bwd_grad_reduce,
/// 0.18). Each rank's replica therefore takes different steps. Measured (docs/replicas.md): drift reaches 0.02 of the
/// tensor's norm after 1000 steps of fine-tuning at a rate of 1e-4. Between models of different training runs, the most
/// distant norm layer differs by at least 0.11. Norm layers resemble each other, so replicas far beyond the limit are
/// rejected, even though a long training at a high rate could explain them.
class ReplicaDistance {
 public:
  /// Maximum of relative() for drift: the distance as a fraction of the longer replica's length.
  static constexpr double kMaxRelative = 0.05;
  /// Maximum difference of an element, as a fraction of the tensor's root mean square or of the larger value of that
  /// element.
  static constexpr double kMaxElement = 0.25;

  /// \param a, b  elements of `dtype`, a float of at least 16 bits; as many on both sides.
  /// \returns the index of the first element of these that differs, or std::nullopt.
  std::optional<std::uint64_t> add(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b);

  /// Number of elements whose values differ; NaN equals NaN.
  std::uint64_t differing() const { return differing_; }
  /// Largest |a - b|. Infinity if one value is not finite and the other is not the same.
  double max_abs() const { return max_abs_; }
  /// Euclidean length of a - b, divided by the length of the longer replica.
  double relative() const;
  /// Also true for equal replicas.
  bool is_drift() const;

 private:
  std::uint64_t elems_ = 0;
  std::uint64_t differing_ = 0;
  double a_squares_ = 0;
  double b_squares_ = 0;
  double squares_ = 0;  // sum over a - b
  double max_abs_ = 0;
  double max_element_ = 0;  // largest |a - b| / max(|a|, |b|) of an element
};

}  // namespace reshard
