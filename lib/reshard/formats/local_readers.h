// The readers for callers that have no Files yet: each opens local_storage(). To go away with the last of these callers,
// and included by the headers of the readers until then.
#pragma once

#include <filesystem>

#include "reshard/formats/container.h"
#include "reshard/formats/format.h"

namespace reshard {

class TorchFile;

Container read_safetensors(const std::filesystem::path& path);
TorchFile read_torch_file(const std::filesystem::path& path);
Container read_torch(const std::filesystem::path& path);
Container read_xser(const std::filesystem::path& path);
bool is_xser(const std::filesystem::path& path);
Container read_container(const std::filesystem::path& path, Format format);
Format format_of_file(const std::filesystem::path& path);

}  // namespace reshard
