#pragma once

#include "reshard/specs/family/scheme.h"
#include "reshard/specs/family/spec_object.h"

namespace reshard {

/// \throws Error kBadInput, with the line and the key, if `object` does not describe a scheme.
Scheme parse_scheme(const SpecObject& object);

}  // namespace reshard
