#pragma once

#include "json_report.h"

namespace reshard::cli {

/// How this program was built: architecture, compiler, linking, memory allocator, instruction sets.
Document build_facts();

/// "glibc 2.36", the library that the program runs with; "unknown" for others than glibc.
std::string libc_name();

}  // namespace reshard::cli
