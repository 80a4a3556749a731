#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// An element as text that no element of other bits has: the shortest decimal number that is rounded to it by its
/// dtype; "nan(0x7fc1)" with all its bits; "(re, im)" for complex elements; "false", "true" or "true(0x02)".
/// \param index  of an element that lies in `bytes`.
std::string format_element(DType dtype, std::span<const std::byte> bytes, std::size_t index);

}  // namespace reshard
