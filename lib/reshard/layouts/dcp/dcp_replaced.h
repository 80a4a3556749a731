#pragma once

#include <filesystem>
#include <string>

#include "reshard/io/files.h"

namespace reshard {

/// Validates that a checkpoint in `directory`, if it has one, contains nothing but a model and entries that the new one
/// has, too: weights may be replaced, but not an optimizer, or other training state. Reads only metadata.
/// \param metadata  content of the new `.metadata`.
/// \throws Error kBadInput naming the entries that would be lost; kIo.
void validate_dcp_replaced(Files& files, const std::filesystem::path& directory, const std::string& metadata);

}  // namespace reshard
