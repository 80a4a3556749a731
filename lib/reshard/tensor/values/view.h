#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// An array viewed as a tensor of `shape`: element `index` of the tensor is element offset(index) of the array.
/// Stacked, transposed and strided tensors are views of the stored bytes.
struct View {
  Dims shape;
  Dims strides;  // in elements, one per dim

  /// Returns a view of a whole array in C order.
  static View of(Dims shape);

  /// \param index  one number per dim.
  std::uint64_t offset(const Dims& index) const;

  /// Merges dims `dim` and `dim + 1`, which must exist; std::nullopt if the result has no single stride.
  std::optional<View> merged(std::size_t dim) const;
  /// Swaps the last two dims, which must exist.
  View transposed() const;

  friend bool operator==(const View&, const View&) = default;
};

/// Returns the dims ordered by decreasing stride; dims of equal strides keep their order.
Dims dims_by_stride(const Dims& strides);

/// Permutes `dims`: element i of the result is dims[order[i]]. An empty order is the identity; other orders must have
/// as many elements as `dims`.
Dims permuted(Dims dims, const Dims& order);
/// Inverse of permuted.
Dims unpermuted(Dims dims, const Dims& order);

}  // namespace reshard
