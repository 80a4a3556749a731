#pragma once

#include "support/files.h"

namespace reshard::test {

/// write_safetensors in place of a file whose metadata stays, so that a rank's file goes on saying which it is.
void rewrite_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

}  // namespace reshard::test
