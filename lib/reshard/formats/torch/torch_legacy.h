#pragma once

#include <filesystem>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/files.h"

namespace reshard {

/// Reads a stream of torch.save before torch 1.6 (or `_use_new_zipfile_serialization=False`): five pickles (a magic
/// number, the protocol, the system, the object, the keys of the storages), then each storage with its number of
/// elements.
/// \throws Error as read_torch_file does.
TorchFile read_torch_stream(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
