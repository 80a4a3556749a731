#pragma once

#include <string>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/specs/family/scheme.h"

namespace reshard {

/// \throws Error kBadInput, with the line and the key, if `object` does not describe a scheme.
Scheme parse_scheme(const JsonObject& object);

/// Reads the objects of `key` as entries of a scheme for ranks.
/// \throws Error like parse_scheme.
std::vector<Scheme::Entry> parse_rank_entries(const JsonObject& object, const std::string& key);

}  // namespace reshard
