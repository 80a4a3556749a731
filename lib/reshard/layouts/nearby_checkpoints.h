#pragma once

#include <filesystem>
#include <string>

#include "reshard/io/files.h"

namespace reshard {

/// What to give instead of `directory`, which is no checkpoint itself: the folders in it that hold one, else its only
/// file of weights. Empty if it has neither.
std::string hint_for_contents(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
