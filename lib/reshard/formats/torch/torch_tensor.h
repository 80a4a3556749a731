#pragma once

#include <cstdint>

#include "reshard/tensor/values/dims.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A tensor with its place. Invariant: every element lies inside its storage.
struct TorchTensor {
  DType dtype;
  Dims shape;
  Dims strides;                    // in elements, one a dim; empty where the elements lie in C order
  std::uint64_t offset_bytes = 0;  // of the element at index 0, from the start of the file
  std::uint32_t storage = 0;       // index into TorchFile::storages(); equal for tensors that share one
};

}  // namespace reshard
