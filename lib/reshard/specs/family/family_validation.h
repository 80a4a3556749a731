#pragma once

#include "reshard/specs/family/family.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {

/// The modules of a description fit each other: names that others mention exist, none is there twice, and fused linears
/// are split alike.
/// \throws Error kBadInput, naming the file and the line.
void validate_family(const Family& family, const JsonFile& file);

}  // namespace reshard
