#include "reshard/base/json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// Writes what Python's json module writes; the library's own writer makes null of what is not finite.
template <typename Value>
class Writer {
 public:
  using NotUtf8 = typename Value::error_handler_t;

  Writer(std::string& text, int indent, bool ascii, NotUtf8 not_utf8)
      : text_(text), indent_(indent), ascii_(ascii), not_utf8_(not_utf8) {}

  void write(const Value& value) {
    if (value.is_object())
      write_members(value, '{', '}');
    else if (value.is_array())
      write_members(value, '[', ']');
    else
      write_scalar(value);
  }

 private:
  void write_scalar(const Value& value) {
    if (!value.is_number_float() || std::isfinite(value.template get<double>())) {
      text_ += value.dump(-1, ' ', ascii_, not_utf8_);
      return;
    }
    const double number = value.template get<double>();
    text_ += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
  }

  void write_members(const Value& value, char open, char close) {
    text_ += open;
    ++depth_;
    const char* separator = "";
    for (const auto& [key, member] : value.items()) {
      text_ += separator;
      separator = ",";
      begin_line();
      if (value.is_object()) {
        text_ += Value(key).dump(-1, ' ', ascii_, not_utf8_);
        text_ += indent_ < 0 ? ":" : ": ";
      }
      write(member);
    }
    --depth_;
    if (!value.empty()) begin_line();
    text_ += close;
  }

  void begin_line() {
    if (indent_ < 0) return;
    text_ += '\n';
    text_.append(static_cast<std::size_t>(indent_) * depth_, ' ');
  }

  std::string& text_;
  int indent_;
  bool ascii_;
  NotUtf8 not_utf8_;
  std::size_t depth_ = 0;
};

template <typename Value>
std::string text_of(const Value& value, int indent, bool ascii, typename Value::error_handler_t not_utf8) {
  std::string text;
  Writer<Value>(text, indent, ascii, not_utf8).write(value);
  return text;
}

}  // namespace

std::string json_string(const std::string& text) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (!std::all_of(text.begin(), text.end(), is_plain)) return Json(text).dump();
  std::string quoted;
  quoted.reserve(text.size() + 2);
  return quoted.append(1, '"').append(text).append(1, '"');
}

std::string json_text(const Json& value, int indent, bool ascii) {
  return text_of(value, indent, ascii, Json::error_handler_t::strict);
}

std::string json_text(const OrderedJson& value, int indent, bool ascii) {
  return text_of(value, indent, ascii, OrderedJson::error_handler_t::strict);
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
  std::string text = text_of(value, -1, false, Json::error_handler_t::replace);
  if (text.size() <= kShown) return printable(text);
  std::size_t end = 0;
  while (end < kShown) end += std::max<std::size_t>(1, utf8_length(std::string_view(text).substr(end)));
  return printable(text.substr(0, end)) + "…";
}

}  // namespace reshard
