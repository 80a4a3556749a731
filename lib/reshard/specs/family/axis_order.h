#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/tensor/recipes/arrangement.h"

namespace reshard {

/// The axes of each dim of an array, as in einops: {{"head", "half", "pair"}, {"in"}} for "(head half pair) in". Along
/// a dim with several axes, the index of the last axis changes fastest.
using DimAxes = std::vector<std::vector<std::string>>;

/// Returns the words of each dim in a text like "(head half pair) in"; std::nullopt if parentheses do not match.
std::optional<DimAxes> words_of_dims(const std::string& text);

/// An order of elements: "expert (part:parts tile row<=128 lane:4) (word pair:2) -> expert word (part tile lane row)".
/// On the left are the dims of a parameter. An axis with "<=N" has the size N, or less if no more is left, and the one
/// without a size has the rest. If the last axis is one of 2 and not on the right, two bytes become
/// one element of U16.
class AxisOrder {
 public:
  /// Returns std::nullopt for an invalid text.
  static std::optional<AxisOrder> parse(const std::string& text);

  const std::string& text() const { return text_; }

  /// Returns the arrangement of a tensor of `shape`, which is padded to `padded`. \param parts  the size of axes with
  /// ":parts".
  /// \throws Error kUsage, without a tensor, if the axes do not divide the dims.
  std::shared_ptr<const Arrangement> arrangement(const Dims& shape, const Dims& padded, std::uint32_t parts) const;

 private:
  struct Axis {
    enum class Size : std::uint8_t { kNumber, kParts, kAtMost, kRest };
    Size kind = Size::kRest;
    std::uint64_t number = 0;
  };
  Dims sizes_of(std::size_t dim, std::uint64_t size, std::uint32_t parts) const;

  std::string text_;
  std::vector<std::vector<Axis>> from_;
  Arrangement::DimsOfAxes to_;  // indices of axes, in the order of `from_`
  bool joins_ = false;          // the last axis is not in `to_`
};

}  // namespace reshard
