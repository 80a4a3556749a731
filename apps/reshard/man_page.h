#pragma once

#include <string>

#include "command.h"

namespace reshard::cli {

/// Returns the manual page reshard(1) in the language of man(7).
std::string man_page(const Command& program, const std::string& version);

}  // namespace reshard::cli
