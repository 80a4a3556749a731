#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/tensor/values/dims.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// The number of elements, multiplied left to right as the reference reader does; nothing on overflow.
std::optional<std::uint64_t> num_elems(const Dims& shape);

/// The bytes a C-ordered tensor takes; nothing on overflow or if the bits do not fill whole bytes.
std::optional<std::uint64_t> num_bytes(DType dtype, const Dims& shape);

/// The strides of a C-ordered tensor, in elements.
Dims c_strides(const Dims& shape);

/// "[32, 128]"
std::string to_string(const Dims& shape);

}  // namespace reshard
