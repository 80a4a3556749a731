#pragma once

#include <string>

#include "reshard/formats/common/container.h"
#include "reshard/io/storage.h"

namespace reshard::test {

/// The elements of `tensor` in C order, taken one by one out of `file`.
std::string c_order_bytes(const TensorEntry& tensor, const Source& file);

}  // namespace reshard::test
