#pragma once

#include <filesystem>

#include "support/files.h"

namespace reshard::test {

/// A file of torch.save with a state dict, tensors in the order of their names.
void write_torch(const std::filesystem::path& path, const TensorMap& tensors);

/// The same as an xser container: the reference file, and a file for each tensor. What stands there is replaced.
void write_xser(const std::filesystem::path& path, const TensorMap& tensors);

/// All tensors of a file of torch.save or xser, in C order.
TensorMap read_torch_tensors(const std::filesystem::path& path);

}  // namespace reshard::test
