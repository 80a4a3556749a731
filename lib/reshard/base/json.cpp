#include "reshard/base/json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// Writes JSON as Python's json module does. The library's own writer turns non-finite numbers into null.
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

Error JsonFile::error(const std::string& pointer, const std::string& message) const {
  Error error(ErrorKind::kBadInput, message);
  error.in(path);
  if (line_of) error.at_line(line_of(pointer));
  return error;
}

JsonObject::JsonObject(const Json& object, std::shared_ptr<const JsonFile> file, std::string where, std::string pointer)
    : object_(object), file_(std::move(file)), where_(std::move(where)), pointer_(std::move(pointer)) {
  if (!object.is_object())
    throw file_->error(pointer_,
                       (where_.empty() ? "the file" : where_) + " is " + brief(object) + ", expected an object");
}

void JsonObject::validate_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string guess = nearest(key, known);
    throw file_->error(pointer_to(key), message("the key \"" + printable(key) + "\" is not known"))
        .hint(guess.empty() ? "known are " + join(known, ", ") : "did you mean \"" + guess + "\"?");
  }
}

const Json& JsonObject::at(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) throw file_->error(pointer_, message("the key \"" + printable(key) + "\" is missing"));
  return *found;
}

void JsonObject::fail(const std::string& key, const std::string& expected, const std::string& hint) const {
  throw file_
      ->error(pointer_to(key), message("\"" + printable(key) + "\" is " + brief(at(key)) + ", expected " + expected))
      .hint(hint);
}

std::uint64_t JsonObject::unsigned_at(const std::string& key) const {
  if (!at(key).is_number_unsigned()) fail(key, "a whole number that is not negative");
  return at(key).get<std::uint64_t>();
}

bool JsonObject::bool_at(const std::string& key) const {
  if (!at(key).is_boolean()) fail(key, "true or false");
  return at(key).get<bool>();
}

const std::string& JsonObject::string_at(const std::string& key) const {
  if (!at(key).is_string()) fail(key, "a string");
  return at(key).get_ref<const std::string&>();
}

const Json& JsonObject::array_at(const std::string& key) const {
  if (!at(key).is_array()) fail(key, "an array");
  return at(key);
}

std::vector<std::string> JsonObject::strings_at(const std::string& key, const char* expected) const {
  for (const Json& item : array_at(key))
    if (!item.is_string()) fail(key, expected);
  return at(key).get<std::vector<std::string>>();
}

std::vector<std::uint64_t> JsonObject::sizes_at(const std::string& key, const char* expected) const {
  for (const Json& item : array_at(key))
    if (!item.is_number_unsigned()) fail(key, expected);
  return at(key).get<std::vector<std::uint64_t>>();
}

JsonObject JsonObject::object_at(const std::string& key) const {
  if (!at(key).is_object()) fail(key, "an object");
  return child(at(key), key, pointer_part(key));
}

std::vector<JsonObject> JsonObject::objects_at(const std::string& key) const {
  std::vector<JsonObject> objects;
  for (const Json& item : array_at(key)) {
    const std::string index = std::to_string(objects.size());
    objects.push_back(child(item, key + "[" + index + "]", pointer_part(key) + "/" + index));
  }
  return objects;
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
