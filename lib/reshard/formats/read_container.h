#pragma once

#include <filesystem>

#include "reshard/formats/container.h"
#include "reshard/formats/format.h"

namespace reshard {

/// Reads the container at `path` in the format it is known to have.
/// \throws Error kBadInput, kUnsupported or kIo, as the reader of the format does.
Container read_container(const std::filesystem::path& path, Format format);

/// The format of the file at `path`, by its first bytes and what stands beside it: torch's zip and legacy files and
/// xser's are told from safetensors, which any other file is taken for.
Format format_of_file(const std::filesystem::path& path);

}  // namespace reshard
