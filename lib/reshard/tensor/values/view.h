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

  /// Whether the elements lie in the array as those of a C-ordered tensor do.
  bool is_c_order() const;
  /// \param index  one number a dim.
  std::uint64_t offset(const Dims& index) const;

  /// With dims `dim` and `dim + 1` as one; nothing if the elements of that have no common stride.
  std::optional<View> merged(std::size_t dim) const;
  /// With the last two dims, which it must have, swapped.
  View transposed() const;

  friend bool operator==(const View&, const View&) = default;
};

/// Dims from the largest stride to the smallest: the order in which a view's elements lie. Of equal strides the first dim
/// comes first.
Dims dims_by_stride(const Dims& strides);

/// The numbers of dims `order`, one after the other; all, as they are, for an empty order.
Dims in_order(Dims dims, const Dims& order);
/// What in_order was made of.
Dims out_of_order(Dims ordered, const Dims& order);

}  // namespace reshard
