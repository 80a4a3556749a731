#pragma once

#include <filesystem>
#include <memory>

#include "reshard/io/files.h"

namespace reshard {

/// Opens a file that contains tensors. Every reader of such files opens them with this function.
/// \throws Error kBadInput if a control file of a download program shows that `path` is unfinished: such programs may
///         allocate a file at its full size first, so that its header is right and its last tensors are zeros; as
///         Files::open.
std::unique_ptr<Source> open_weights(Files& files, const std::filesystem::path& path);

}  // namespace reshard
