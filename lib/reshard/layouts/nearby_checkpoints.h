#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "reshard/io/files.h"

namespace reshard {

/// The only file in `directory` that may contain all of a model, by its name; std::nullopt unless it is exactly one.
std::optional<std::string> only_weights_file(Files& files, const std::filesystem::path& directory);

/// What to give instead of `directory`, which is no checkpoint itself: the folders in it that hold one, else its only
/// file of weights. Empty if it has neither.
std::string hint_for_contents(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
