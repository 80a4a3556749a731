#include "reshard/base/json.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"

namespace reshard {
Json parse_json(std::string_view text, const std::filesystem::path& path) {
  // The parser takes a NUL for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::kBadInput, "holds a NUL byte and so is not valid JSON").in(path).at_byte(nul);
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, nlohmann::detail::parse_event_t event, Json& parsed) {
    using Event = nlohmann::detail::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxJsonDepth)
      throw Error(ErrorKind::kBadInput, "is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels").in(path);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw Error(ErrorKind::kBadInput, "has the key \"" + printable(parsed.get<std::string>()) + "\" twice").in(path);
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    throw Error(ErrorKind::kBadInput, "is not valid JSON").in(path).at_byte(error.byte > 0 ? error.byte - 1 : 0);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kBadInput, "is not valid JSON: a number in it does not fit 64 bits").in(path);
  }
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t cap_bytes) {
  return parse_json(read_text_file(path, cap_bytes), path);
}

JsonObject::JsonObject(const Json& object, const std::filesystem::path& path, std::string where)
    : object_(object), path_(path), where_(std::move(where)) {
  if (!object.is_object())
    throw Error(ErrorKind::kBadInput,
                (where_.empty() ? std::string("the file") : where_) + " is " + brief(object) + ", expected an object")
        .in(path);
}

bool JsonObject::has(const std::string& key) const {
  return object_.contains(key);
}

const Json& JsonObject::at(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) {
    throw Error(ErrorKind::kBadInput,
                (where_.empty() ? std::string() : where_ + ": ") + "the key \"" + printable(key) + "\" is missing")
        .in(path_);
  }
  return *found;
}

void JsonObject::fail(const std::string& key, const std::string& expected) const {
  throw Error(ErrorKind::kBadInput, (where_.empty() ? std::string() : where_ + ": ") + "\"" + printable(key) +
                                        "\" is " + brief(at(key)) + ", expected " + expected)
      .in(path_);
}

std::uint64_t JsonObject::unsigned_at(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_number_unsigned()) fail(key, "a whole number that is not negative");
  return value.get<std::uint64_t>();
}

bool JsonObject::bool_at(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_boolean()) fail(key, "true or false");
  return value.get<bool>();
}

const std::string& JsonObject::string_at(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_string()) fail(key, "a string");
  return value.get_ref<const std::string&>();
}

const Json& JsonObject::array_at(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_array()) fail(key, "an array");
  return value;
}

const Json& JsonObject::object_at(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_object()) fail(key, "an object");
  return value;
}

std::string brief(const Json& value) {
  constexpr std::size_t kShown = 60;
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 8) return "an array of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kShown) return printable(text);
  std::size_t end = 0;
  while (end < kShown) end += std::max<std::size_t>(1, utf8_length(std::string_view(text).substr(end)));
  return printable(text.substr(0, end)) + "…";
}

}  // namespace reshard
