#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/tensor/values/dims.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Number of elements, multiplied left to right like the reference reader; std::nullopt on overflow.
std::optional<std::uint64_t> num_elems(const Dims& shape);

/// Size of a C-ordered tensor in bytes; std::nullopt on overflow, or if its bits do not fill whole bytes.
std::optional<std::uint64_t> num_bytes(DType dtype, const Dims& shape);

/// Strides of a C-ordered tensor, in elements.
Dims c_strides(const Dims& shape);

/// "[32, 128]"
std::string to_string(const Dims& shape);

}  // namespace reshard
