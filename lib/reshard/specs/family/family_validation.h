#pragma once

#include "reshard/specs/family/family.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {

/// Validates that the modules of a description are consistent: referenced modules exist, modules are unique, and fused
/// linears are split along the same dim.
/// \throws Error kBadInput, naming the file and the line.
void validate_family(const Family& family, const JsonFile& file);

}  // namespace reshard
