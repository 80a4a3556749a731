// Changes to the source's tensors, for reports of a plan.
#pragma once

#include <cstddef>
#include <optional>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A transform and the number of tensors that it was applied to.
struct Applied {
  enum class Transform { kRename, kDrop, kCast, kAverage, kDequantize };
  Transform transform;
  std::size_t tensors;
  std::optional<DType> dtype = std::nullopt;  // target dtype of a cast

  bool operator==(const Applied&) const = default;
};

/// \returns "rename", "drop", "cast", "average" or "dequantize".
constexpr const char* name(Applied::Transform transform) {
  constexpr const char* kNames[] = {"rename", "drop", "cast", "average", "dequantize"};
  return kNames[static_cast<std::size_t>(transform)];
}

}  // namespace reshard
