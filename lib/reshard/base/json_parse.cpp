// Parser from JSON text to values.

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// The literals NaN, Infinity and -Infinity of a text. The library's parser rejects them, so it parses a text in which
/// each is replaced by 0 and padded with blanks to the same length. The builder then restores the values.
struct NonFinite {
  std::string text;                                      // empty if the text has no such literal
  std::vector<std::pair<std::uint64_t, double>> values;  // value, and index among all numbers of the text, ascending
};

std::optional<double> non_finite(std::string_view word) {
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Returns the index after the closing quote of the string that begins at `begin`.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  std::size_t at = begin + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

/// Counts every word outside strings that begins like a number. If a word is not a number, the parser rejects the text.
NonFinite find_non_finite(std::string_view text) {
  constexpr std::string_view kBetweenWords = " \t\r\n{}[]:,\"";
  NonFinite found;
  if (text.find("NaN") == text.npos && text.find("Infinity") == text.npos) return found;
  std::uint64_t numbers = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(kBetweenWords, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (const auto value = non_finite(word)) {
      if (found.text.empty()) found.text = text;
      found.text.replace(at, word.size(), word.size(), ' ');
      found.text[at] = '0';
      found.values.emplace_back(numbers++, *value);
    } else if (!word.empty() && (word.front() == '-' || (word.front() >= '0' && word.front() <= '9'))) {
      ++numbers;
    }
    at = std::max(end, at + 1);
  }
  return found;
}

/// Builds the value from the parser's events. The library's own parser with a callback searches all sibling members at
/// the end of each object, which takes a minute for a file of 60 000 parameters.
template <typename Value>
class Builder final : public nlohmann::json_sax<Value> {
 public:
  using Sax = nlohmann::json_sax<Value>;
  using typename Sax::binary_t;
  using typename Sax::number_float_t;
  using typename Sax::number_integer_t;
  using typename Sax::number_unsigned_t;
  using typename Sax::string_t;

  /// `read_bytes` is the number of bytes that the parser has consumed.
  /// `places` receives the position of each value; it may be null.
  Builder(const std::filesystem::path& path, const NonFinite& non_finite, const std::uint64_t& read_bytes,
          JsonPlaces* places)
      : path_(path),
        next_non_finite_(non_finite.values.begin()),
        end_non_finite_(non_finite.values.end()),
        read_bytes_(read_bytes),
        places_(places) {}

  Value take() { return std::move(root_); }

  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(number_integer_t value) override { return put_number(value), true; }
  bool number_unsigned(number_unsigned_t value) override { return put_number(value), true; }
  bool number_float(number_float_t value, const string_t&) override { return put_number(value), true; }
  bool string(string_t& value) override { return put(std::move(value)), true; }
  bool binary(binary_t& value) override { return put(std::move(value)), true; }  // cannot occur in JSON text

  bool start_object(std::size_t) override { return open(Value::object()); }
  bool end_object() override { return close(), true; }
  bool start_array(std::size_t) override { return open(Value::array()); }
  bool end_array() override { return close(), true; }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->template get_ref<typename Value::object_t&>().emplace(name, nullptr);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, "has the key \"" + printable(name) + "\" twice").in(path_).at_byte(last_byte());
    if (places_) key_ = name;
    return member_ = &member->second, true;
  }

  bool parse_error(std::size_t position, const std::string&, const typename Value::exception& error) override {
    if (dynamic_cast<const typename Value::parse_error*>(&error) == nullptr)
      throw Error(ErrorKind::kBadInput, "is not valid JSON: a number in it does not fit 64 bits")
          .in(path_)
          .at_byte(position > 0 ? position - 1 : 0);
    throw Error(ErrorKind::kBadInput, "is not valid JSON").in(path_).at_byte(position > 0 ? position - 1 : 0);
  }

 private:
  void put_number(Value value) {
    if (next_non_finite_ != end_non_finite_ && next_non_finite_->first == numbers_)
      value = (next_non_finite_++)->second;
    ++numbers_;
    put(std::move(value));
  }

  Value& put(Value value) {
    note_place();
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *member_ = std::move(value);
  }

  bool open(Value value) {
    if (open_.size() == kMaxJsonDepth)
      throw Error(ErrorKind::kBadInput, "is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels")
          .in(path_)
          .at_byte(last_byte());
    open_.push_back(&put(std::move(value)));
    if (places_) open_places_.push_back(last_place_);
    return true;
  }

  void close() {
    open_.pop_back();
    if (places_) open_places_.pop_back();
  }

  void note_place() {
    if (!places_) return;
    if (open_.empty())
      last_place_ = places_->add(0, {}, last_byte());
    else
      last_place_ = places_->add(open_places_.back(),
                                 open_.back()->is_array() ? std::to_string(open_.back()->size()) : key_, last_byte());
  }

  std::uint64_t last_byte() const { return read_bytes_ > 0 ? read_bytes_ - 1 : 0; }

  const std::filesystem::path& path_;
  std::vector<std::pair<std::uint64_t, double>>::const_iterator next_non_finite_, end_non_finite_;
  std::uint64_t numbers_ = 0;  // numbers read so far
  const std::uint64_t& read_bytes_;
  Value root_;
  std::vector<Value*> open_;  // unfinished objects and arrays, outermost first
  Value* member_ = nullptr;   // member of the innermost object that the next value is assigned to
  JsonPlaces* places_;
  std::vector<JsonPlaces::Node> open_places_;  // parallel to open_
  std::string key_;                            // key of member_
  JsonPlaces::Node last_place_ = 0;            // place of the last value
};

/// Iterates over a text and counts the bytes read.
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

template <typename Value>
Value parse(std::string_view text, const std::filesystem::path& path, JsonDialect dialect,
            JsonPlaces* places = nullptr) {
  // The parser treats a NUL as the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::kBadInput, "contains a NUL byte, which is not valid JSON").in(path).at_byte(nul);
  const NonFinite non_finite = dialect == JsonDialect::kPython ? find_non_finite(text) : NonFinite{};
  if (!non_finite.text.empty()) text = non_finite.text;
  std::uint64_t read_bytes = 0;
  Builder<Value> builder(path, non_finite, read_bytes, places);
  Value::sax_parse(CountingIterator(text.data(), read_bytes), CountingIterator(text.data() + text.size(), read_bytes),
                   &builder);
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path, JsonDialect dialect) {
  return parse<Json>(text, path, dialect);
}

OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path, JsonDialect dialect) {
  return parse<OrderedJson>(text, path, dialect);
}

JsonPlaces::Node JsonPlaces::add(Node around, const std::string& key, std::uint64_t byte) {
  if (!bytes_.empty()) members_.emplace(std::pair(around, pointer_part(key)), bytes_.size());
  bytes_.push_back(byte);
  return bytes_.size() - 1;
}

std::uint64_t JsonPlaces::line_of(const std::string& pointer) const {
  Node node = 0;
  std::vector<std::string> parts = split(pointer, '/');  // the first part is empty
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto member = members_.find(std::pair(node, parts[i]));
    if (member == members_.end()) break;
    node = member->second;
  }
  if (bytes_.empty()) return 1;
  return 1 + static_cast<std::uint64_t>(std::lower_bound(newlines_.begin(), newlines_.end(), bytes_[node]) -
                                        newlines_.begin());
}

LocatedJson parse_located_json(std::string_view text, const std::filesystem::path& path) {
  LocatedJson located;
  try {
    located.json = parse<Json>(text, path, JsonDialect::kStrict, &located.places);
  } catch (Error& error) {
    if (error.offset_bytes()) error.at_line(line_at(text, *error.offset_bytes()));
    throw;
  }
  for (std::size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1))
    located.places.newlines_.push_back(at);
  return located;
}

std::string pointer_part(const std::string& key) {
  std::string part;
  for (const char c : key) part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return part;
}

}  // namespace reshard
