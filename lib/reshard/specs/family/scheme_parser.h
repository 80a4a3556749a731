#pragma once

#include "reshard/base/json.h"
#include "reshard/specs/family/scheme.h"

namespace reshard {

/// \throws Error kBadInput, with the line and the key, if `object` does not describe a scheme.
Scheme parse_scheme(const JsonObject& object);

}  // namespace reshard
