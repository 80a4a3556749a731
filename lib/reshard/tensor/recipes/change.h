#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reshard/tensor/recipes/arrangement.h"

namespace reshard {

/// How a program's tensor follows from a parameter: elements `first`, `first` + `step`, ... of the last dim, plus `plus`,
/// divided by `divisor`.
struct ValueChange {
  std::uint64_t first = 0;
  std::uint64_t step = 1;
  std::uint64_t plus = 0;
  std::uint64_t divisor = 1;
  /// If not null, all elements are kept, and arranged; `plus` and `divisor` still apply only to those above.
  std::shared_ptr<const Arrangement> arrangement;

  /// Whether the parameter's values cannot always be recovered: a sum, or a quotient, may be rounded.
  bool rounds() const { return plus != 0 || (divisor & (divisor - 1)) != 0; }
  /// Returns the name of the tensor that follows from a parameter: "bias[1::2] + 1".
  std::string name_of(const std::string& parameter) const;
  /// Returns the shape of the tensor that follows from a parameter of `shape`, which must have a last dim that `step`
  /// divides.
  Dims shape_of(Dims shape) const;
  /// Returns the dtype of the tensor that follows from a parameter of `dtype`: U16 if two elements of U8 become one.
  DType dtype_of(DType dtype) const;
};

/// Computes the changed tensor from the parameter: cast to `dtype` first, then each operation in single precision (F64 in
/// double), rounded to `dtype`. Arranged pairs of U8 become U16, without a cast; `dtype` must be U16.
std::shared_ptr<const Recipe> change_recipe(const ValueChange& change, DType dtype);

/// Computes the parameter from the changed tensors, one per remainder of the index in the last dim, or an arranged one.
/// Reverses change_recipe, except that what it rounded stays rounded.
std::shared_ptr<const Recipe> restore_recipe(std::vector<ValueChange> changes);

}  // namespace reshard
