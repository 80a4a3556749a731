#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace reshard {

template <class Key, class T, class IgnoredLess, class Allocator>
class OrderedMap;

/// Sorted keys with logarithmic lookup: a file of 60 000 parameters must not take a minute. A document in which order
/// matters uses an array.
using Json = nlohmann::json;
/// Keys in the order of the text, with logarithmic lookup, for files that are written again.
using OrderedJson = nlohmann::basic_json<OrderedMap>;

enum class JsonDialect : std::uint8_t {
  kStrict,  // RFC 8259
  kPython,  // also NaN, Infinity and -Infinity, as in Python's json module; parsed as doubles
};

}  // namespace reshard
