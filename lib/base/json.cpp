#include "reshard/base/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// Builds the value from the parser's events. The library's own parser with a callback looks, at the end of each
/// object, through all that stand beside it: a minute for a file of 60 000 parameters.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  /// `read_bytes` counts what the parser has taken of the text.
  /// `places`, if there are any, is told where each value stands.
  Builder(const std::filesystem::path& path, const std::uint64_t& read_bytes,
          std::map<std::string, std::uint64_t>* places)
      : path_(path), read_bytes_(read_bytes), places_(places) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(number_integer_t value) override { return put(value), true; }
  bool number_unsigned(number_unsigned_t value) override { return put(value), true; }
  bool number_float(number_float_t value, const string_t&) override { return put(value), true; }
  bool string(string_t& value) override { return put(std::move(value)), true; }
  bool binary(binary_t& value) override { return put(std::move(value)), true; }  // of no JSON text

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(), true; }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(), true; }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, "has the key \"" + printable(name) + "\" twice").in(path_).at_byte(last_byte());
    if (places_) key_pointer_ = pointers_.back() + "/" + pointer_part(name);
    return member_ = &member->second, true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    if (dynamic_cast<const Json::parse_error*>(&error) == nullptr)
      throw Error(ErrorKind::kBadInput, "is not valid JSON: a number in it does not fit 64 bits")
          .in(path_)
          .at_byte(position > 0 ? position - 1 : 0);
    throw Error(ErrorKind::kBadInput, "is not valid JSON").in(path_).at_byte(position > 0 ? position - 1 : 0);
  }

 private:
  Json& put(Json value) {
    note_place();
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *member_ = std::move(value);
  }

  bool open(Json value) {
    if (open_.size() == kMaxJsonDepth)
      throw Error(ErrorKind::kBadInput, "is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels")
          .in(path_)
          .at_byte(last_byte());
    open_.push_back(&put(std::move(value)));
    if (places_) pointers_.push_back(last_pointer_);
    return true;
  }

  void close() {
    open_.pop_back();
    if (places_) pointers_.pop_back();
  }

  void note_place() {
    if (!places_) return;
    if (open_.empty())
      last_pointer_.clear();
    else if (open_.back()->is_array())
      last_pointer_ = pointers_.back() + "/" + std::to_string(open_.back()->size());
    else
      last_pointer_ = key_pointer_;
    places_->emplace(last_pointer_, last_byte());
  }

  std::uint64_t last_byte() const { return read_bytes_ > 0 ? read_bytes_ - 1 : 0; }

  const std::filesystem::path& path_;
  const std::uint64_t& read_bytes_;
  Json root_;
  std::vector<Json*> open_;  // objects and arrays that have begun, each inside the one before
  Json* member_ = nullptr;   // of the innermost object: the one whose key was last
  std::map<std::string, std::uint64_t>* places_;
  std::vector<std::string> pointers_;  // of what is in open_
  std::string key_pointer_;            // of member_
  std::string last_pointer_;           // of the value that came last
};

/// Goes through a text, and counts.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::uint64_t& count) : at_(at), count_(&count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() { return ++at_, ++*count_, *this; }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::uint64_t* count_;
};

std::uint64_t line_at(std::string_view text, std::uint64_t byte) {
  return 1 + static_cast<std::uint64_t>(std::count(
                 text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size())), '\n'));
}

Json parse(std::string_view text, const std::filesystem::path& path, std::map<std::string, std::uint64_t>* places) {
  // The parser takes a NUL for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::kBadInput, "holds a NUL byte and so is not valid JSON").in(path).at_byte(nul);
  std::uint64_t read_bytes = 0;
  Builder builder(path, read_bytes, places);
  Json::sax_parse(CountingIterator(text.data(), read_bytes), CountingIterator(text.data() + text.size(), read_bytes),
                  &builder);
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path) {
  return parse(text, path, nullptr);
}

std::uint64_t JsonPlaces::line_of(std::string pointer) const {
  auto found = bytes_.find(pointer);
  while (found == bytes_.end() && !pointer.empty()) {
    pointer.resize(pointer.rfind('/'));
    found = bytes_.find(pointer);
  }
  return line_at(text_, found == bytes_.end() ? 0 : found->second);
}

LocatedJson parse_located_json(std::string text, const std::filesystem::path& path) {
  LocatedJson located;
  try {
    located.json = parse(text, path, &located.places.bytes_);
  } catch (Error& error) {
    if (error.offset_bytes()) error.at_line(line_at(text, *error.offset_bytes()));
    throw;
  }
  located.places.text_ = std::move(text);
  return located;
}

std::string pointer_part(const std::string& key) {
  std::string part;
  for (const char c : key) part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return part;
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
