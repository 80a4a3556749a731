#pragma once

#include <string>

#include "reshard/specs/family/scheme_parser.h"

namespace reshard::test {

/// The scheme that a JSON text describes.
inline Scheme scheme_of(const std::string& json) {
  const Json parsed = Json::parse(json);
  const JsonFile file{"scheme.json"};
  return parse_scheme({parsed, file});
}

/// A scheme's only entry, of these keys: "\"entry\": \"w\", …".
inline SchemeEntry scheme_entry(const std::string& keys) {
  return scheme_of(R"({"program": "p", "entries": [{)" + keys + "}]}").entries.front();
}

}  // namespace reshard::test
