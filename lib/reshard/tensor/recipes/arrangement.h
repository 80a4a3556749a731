#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// The elements of a tensor in another order, in a tensor of another shape. Both consist of the same axes. The tensor is
/// first padded with zeros at the end of each dim, to the product of the dim's axes.
class Arrangement {
 public:
  /// The axes of each dim, as indices into `sizes`. Along a dim with several axes, the index of the last changes fastest.
  using DimsOfAxes = std::vector<std::vector<std::size_t>>;

  /// \param sizes  of the axes, at least 1.
  /// \param from, to  every axis once each. The last `word` elements of `from` are one element of `to`, without an axis.
  /// \param shape  shape of the tensor without padding.
  Arrangement(Dims sizes, DimsOfAxes from, DimsOfAxes to, Dims shape, std::uint64_t word);

  const Dims& from_shape() const { return from_shape_; }
  const Dims& to_shape() const { return to_shape_; }
  /// Number of elements that one arranged element consists of.
  std::uint64_t word() const { return word_; }
  /// Identifies the arrangement in names and fingerprints.
  std::string key() const;

  /// Returns a box of the tensor that contains the elements of `box` of the arranged tensor; at least one element.
  Box box_from(const Box& box) const;
  /// Returns a box of the arranged tensor that contains the elements of `box` of the tensor.
  Box box_to(const Box& box) const;
  /// Fills `box` of the arranged tensor. `from` are the elements of box_from(box), or of a larger box.
  /// \param width  bytes of an element of the tensor: 1 to 8, a power of 2; times word(), at most 8.
  void arrange(const Box& from_box, std::span<const std::byte> from, const Box& box, std::span<std::byte> result,
               std::size_t width) const;
  /// Fills `box` of the tensor. `to` are the elements of box_to(box), or of a larger box. \param width  as for arrange.
  void restore(const Box& to_box, std::span<const std::byte> to, const Box& box, std::span<std::byte> result,
               std::size_t width) const;

 private:
  Box in_words(Box box) const;

  Dims sizes_;
  DimsOfAxes from_, to_;
  Dims from_shape_, to_shape_;
  Dims word_shape_;  // from_shape_ with words for elements
  std::uint64_t word_;
};

}  // namespace reshard
