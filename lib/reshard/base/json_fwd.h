#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace reshard {

template <class Key, class T, class IgnoredLess, class Allocator>
class OrderedMap;

/// Sorted keys, found in logarithmic time: a file of 60 000 parameters must not take a minute. Where order means
/// something, a document says it with an array.
using Json = nlohmann::json;
/// Keys in the order of the text, for files that are written again; found in logarithmic time, too.
using OrderedJson = nlohmann::basic_json<OrderedMap>;

enum class JsonDialect : std::uint8_t {
  kStrict,  // RFC 8259
  kPython,  // also NaN, Infinity and -Infinity, which Python's json module writes and reads; they become doubles
};

}  // namespace reshard
