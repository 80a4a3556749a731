#pragma once

#include <filesystem>

#include "support/files.h"

namespace reshard::test {

/// A file of torch.save with a state dict, tensors in the order of their names.
void write_torch(const std::filesystem::path& path, const TensorMap& tensors);

/// All tensors of a file of torch.save or xser, in C order.
TensorMap read_torch_tensors(const std::filesystem::path& path);

}  // namespace reshard::test
