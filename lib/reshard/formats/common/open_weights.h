#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "reshard/io/files.h"

namespace reshard {

/// Returns the control file of a download program next to `path`, which shows that `path` is unfinished; std::nullopt if
/// there is none.
std::optional<std::filesystem::path> download_control_of(Files& files, const std::filesystem::path& path);

/// Opens a file that contains tensors. Every reader of such files opens them with this function.
/// \throws Error kBadInput if a control file of a download program shows that `path` is unfinished: such programs may
///         allocate a file at its full size first, so that its header is right and its last tensors are zeros; as
///         Files::open.
std::unique_ptr<Source> open_weights(Files& files, const std::filesystem::path& path);

}  // namespace reshard
