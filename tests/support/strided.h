#pragma once

#include <string>

#include "reshard/formats/container.h"

namespace reshard::test {

/// The elements of `tensor` in C order, taken one by one out of `file`, the whole content of its file.
std::string c_order_bytes(const TensorEntry& tensor, const std::string& file);

}  // namespace reshard::test
