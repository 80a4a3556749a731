#pragma once

#include <cstdint>

#include "reshard/formats/common/container.h"

namespace reshard {

/// A tensor with its place. Invariant: every element lies inside its storage.
struct TorchTensor : TensorEntry {
  std::uint32_t storage = 0;  // index into TorchFile::storages(); equal for tensors that share one
};

}  // namespace reshard
