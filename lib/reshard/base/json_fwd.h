#pragma once

#include <nlohmann/json_fwd.hpp>

namespace reshard {

/// Sorted keys, found in logarithmic time: a file of 60 000 parameters must not take a minute. Where order means
/// something, a document says it with an array.
using Json = nlohmann::json;
/// Keys in the order of the text, for files that are written again.
using OrderedJson = nlohmann::ordered_json;

}  // namespace reshard
