#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Formats an element so that different bits always give different text: the shortest decimal number that rounds to the
/// element in its dtype; "nan(0x7fc1)" with all its bits; "(re, im)" for complex elements; "false", "true" or
/// "true(0x02)".
/// \param index  index of an element in `bytes`.
std::string format_element(DType dtype, std::span<const std::byte> bytes, std::size_t index);

}  // namespace reshard
