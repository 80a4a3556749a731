#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// An array seen as a tensor of `shape`: element `index` of the tensor is element offset(index) of the array. Stacked,
/// transposed and strided tensors are views of the bytes that a file has.
struct View {
  Dims shape;
  Dims strides;  // in elements, one a dim

  /// All of an array in C order.
  static View of(Dims shape);

  /// \param index  one number a dim.
  std::uint64_t offset(const Dims& index) const;

  /// With dims `dim` and `dim + 1`, which it must have, as one; std::nullopt if that has no single stride.
  std::optional<View> merged(std::size_t dim) const;
  /// With the last two dims, which it must have, swapped.
  View transposed() const;

  friend bool operator==(const View&, const View&) = default;
};

/// The dims ordered from the largest stride to the smallest; dims of equal strides keep their order.
Dims dims_by_stride(const Dims& strides);

/// `dims` permuted: element i of the result is dims[order[i]]. An empty order is the identity; others have as many elements
/// as `dims`.
Dims permuted(Dims dims, const Dims& order);
/// The inverse of permuted.
Dims unpermuted(Dims dims, const Dims& order);

}  // namespace reshard
