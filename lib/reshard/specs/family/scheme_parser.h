#pragma once

#include <string>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/specs/family/scheme.h"

namespace reshard {

/// \throws Error kBadInput, with the line and the key, if `object` does not describe a scheme.
Scheme parse_scheme(const JsonObject& object);

/// Reads the objects of `key` as entries of a scheme, one for ranks if `for_ranks`, that has `versions`.
/// \throws Error like parse_scheme.
std::vector<SchemeEntry> parse_entries(const JsonObject& object, const std::string& key,
                                       const std::vector<std::string>& versions, bool for_ranks);

}  // namespace reshard
