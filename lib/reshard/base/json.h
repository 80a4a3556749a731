#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/base/ordered_map.h"

namespace reshard {

/// Objects and arrays in one another, at most; as serde_json, which the reference reader of safetensors uses.
inline constexpr std::size_t kMaxJsonDepth = 128;

enum class JsonDialect : std::uint8_t {
  kStrict,  // RFC 8259
  kPython,  // also NaN, Infinity and -Infinity, which Python's json module writes and reads; they become doubles
};

/// Parses a whole JSON text that came from outside.
/// \throws Error kBadInput, naming `path` and the byte, for anything that is not one JSON value, for a key given twice
/// in one object, and for nesting deeper than kMaxJsonDepth.
Json parse_json(std::string_view text, const std::filesystem::path& path, JsonDialect dialect = JsonDialect::kStrict);

/// The same, with keys in the order of the text.
OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path,
                               JsonDialect dialect = JsonDialect::kStrict);

/// The text of a value, with NaN, Infinity and -Infinity, for which the library's own dump() writes null.
/// \param indent Blanks per level; negative: all on one line, without blanks.
/// \param ascii  Escapes what is not ASCII, as Python's json module does.
std::string json_text(const Json& value, int indent = -1, bool ascii = false);
std::string json_text(const OrderedJson& value, int indent = -1, bool ascii = false);

/// `text` as a JSON string, with what is not ASCII as it is.
/// \throws Json::exception if it is not UTF-8.
std::string json_string(const std::string& text);

/// The places of the values of a JSON text. Their size is in proportion to the text, however deeply it is nested.
class JsonPlaces {
 public:
  using Node = std::size_t;  // a value, in the order of the text

  /// Adds the next value of the text, the root first.
  /// \param around  the object or array that it is directly in; not used for the root.
  /// \param key     its key, or its index.
  /// \param byte    where it begins, about.
  Node add(Node around, const std::string& key, std::uint64_t byte);

  /// The line, from 1, of the value that a JSON pointer such as "/modules/3/plan" names; where it has none, of the
  /// nearest around it.
  std::uint64_t line_of(const std::string& pointer) const;

 private:
  friend struct LocatedJson parse_located_json(std::string_view text, const std::filesystem::path& path);

  std::vector<std::uint64_t> newlines_;  // bytes of the text
  std::vector<std::uint64_t> bytes_;     // of each value
  std::map<std::pair<Node, std::string>, Node> members_;
};

struct LocatedJson {
  Json json;
  JsonPlaces places;
};

/// parse_json for a text that people write, and have to find their mistakes in.
/// \throws as parse_json, with the line.
LocatedJson parse_located_json(std::string_view text, const std::filesystem::path& path);

/// `key` as a part of a JSON pointer (RFC 6901).
std::string pointer_part(const std::string& key);

/// Typed access to one object of a JSON file, with errors that name the file and the key.
class JsonObject {
 public:
  /// `object` and `path` are borrowed. `where` names the object inside the file ("specs[0]") and may be empty.
  /// \throws Error kBadInput if it is not an object.
  JsonObject(const Json& object, const std::filesystem::path& path, std::string where = {});

  bool has(const std::string& key) const;
  /// The member, or an error that says it is missing.
  const Json& at(const std::string& key) const;
  std::uint64_t unsigned_at(const std::string& key) const;  // whole, not negative
  bool bool_at(const std::string& key) const;
  const std::string& string_at(const std::string& key) const;
  const Json& array_at(const std::string& key) const;
  const Json& object_at(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

 private:
  const Json& object_;
  const std::filesystem::path& path_;
  std::string where_;
};

/// `value` as text for an error: its JSON, cut short.
std::string brief(const Json& value);

}  // namespace reshard
