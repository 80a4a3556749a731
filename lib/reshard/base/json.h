#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json_fwd.h"

namespace reshard {

/// Object type of OrderedJson: members in the order of insertion, found by key in logarithmic time. nlohmann's
/// ordered_map compares every member, so that reading a file takes the square of its keys. A tree rather than a hash
/// table, since keys come from files and could be made to collide.
/// Invariant: `places_` is empty for up to kFewMembers members, and has the place of every key otherwise.
template <class Key, class T, class IgnoredLess = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class OrderedMap : private std::vector<std::pair<const Key, T>, Allocator> {
  using Members = std::vector<std::pair<const Key, T>, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;  // NOLINT(readability-identifier-naming): the standard library's name
  using typename Members::allocator_type;
  using typename Members::const_iterator;
  using typename Members::const_reference;
  using typename Members::difference_type;
  using typename Members::iterator;
  using typename Members::reference;
  using typename Members::size_type;
  using typename Members::value_type;

  using Members::begin;
  using Members::cbegin;
  using Members::cend;
  using Members::empty;
  using Members::end;
  using Members::max_size;
  using Members::size;

  OrderedMap() = default;
  template <class Iterator>
  OrderedMap(Iterator first, Iterator last) : Members(first, last) {
    find_places();
  }

  void clear() {
    Members::clear();
    places_.clear();
  }

  /// Adds a member unless the key is there.
  template <class AnyKey>
  std::pair<iterator, bool> emplace(AnyKey&& key, T value) {
    if (const iterator found = find(key); found != end()) return {found, false};
    Members::emplace_back(std::forward<AnyKey>(key), std::move(value));
    if (!places_.empty())
      places_.emplace(Members::back().first, size() - 1);
    else
      find_places();
    return {end() - 1, true};
  }
  std::pair<iterator, bool> insert(value_type member) { return emplace(member.first, std::move(member.second)); }
  template <class Iterator>
  void insert(Iterator first, Iterator last) {
    for (; first != last; ++first) insert(*first);
  }

  template <class AnyKey>
  T& operator[](AnyKey&& key) {
    return emplace(std::forward<AnyKey>(key), T{}).first->second;
  }
  template <class AnyKey>
  iterator find(const AnyKey& key) {
    return begin() + static_cast<difference_type>(place_of(key));
  }
  template <class AnyKey>
  const_iterator find(const AnyKey& key) const {
    return begin() + static_cast<difference_type>(place_of(key));
  }
  template <class AnyKey>
  size_type count(const AnyKey& key) const {
    return place_of(key) == size() ? 0 : 1;
  }

  /// Takes time in proportion to the members.
  iterator erase(iterator first, iterator last) {
    const difference_type place = first - begin();
    Members kept;  // keys cannot be assigned
    kept.reserve(size());
    for (iterator member = begin(); member != end(); ++member)
      if (member < first || member >= last) kept.emplace_back(member->first, std::move(member->second));
    Members::swap(kept);
    places_.clear();
    find_places();
    return begin() + place;
  }
  iterator erase(iterator member) { return erase(member, member + 1); }
  size_type erase(const Key& key) {
    const iterator found = find(key);
    if (found == end()) return 0;
    erase(found);
    return 1;
  }

  friend bool operator==(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Members&>(a) == static_cast<const Members&>(b);
  }
  friend bool operator<(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Members&>(a) < static_cast<const Members&>(b);
  }

 private:
  static constexpr size_type kFewMembers = 16;  // compared one by one

  void find_places() {
    if (size() <= kFewMembers) return;
    for (size_type i = 0; i < size(); ++i) places_.emplace((begin() + static_cast<difference_type>(i))->first, i);
  }

  /// The member's index; size() if the key is absent.
  template <class AnyKey>
  size_type place_of(const AnyKey& key) const {
    if (!places_.empty()) {
      const auto found = places_.find(key);
      return found == places_.end() ? size() : found->second;
    }
    size_type place = 0;
    while (place < size() && !((begin() + static_cast<difference_type>(place))->first == key)) ++place;
    return place;
  }

  std::map<Key, size_type, std::less<>> places_;
};

/// Objects and arrays in one another, at most; as serde_json, which the reference reader of safetensors uses.
inline constexpr std::size_t kMaxJsonDepth = 128;

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

/// A file of JSON, for errors.
struct JsonFile {
  std::filesystem::path path;
  /// The line of what a JSON pointer names; none for JSON whose lines nobody needs.
  std::function<std::uint64_t(const std::string& pointer)> line_of = {};

  /// 0 where lines are not known.
  std::uint64_t line(const std::string& pointer) const { return line_of ? line_of(pointer) : 0; }
  /// An error about what a JSON pointer names.
  Error error(const std::string& pointer, const std::string& message) const;
};

/// Typed access to one object of a JSON file, with errors that name the file, the key and, where it is known, the line.
class JsonObject {
 public:
  /// `object` is borrowed. `where` names the object for people ("specs[0]"), and is empty for the whole file.
  /// \throws Error kBadInput if it is not an object.
  JsonObject(const Json& object, const JsonFile& file, std::string where = {})
      : JsonObject(object, std::make_shared<const JsonFile>(file), std::move(where), {}) {}
  JsonObject(const Json& object, const std::filesystem::path& path, std::string where = {})
      : JsonObject(object, JsonFile{path}, std::move(where)) {}
  /// An object in this one: `pointer` leads to it from here ("modules/3").
  JsonObject child(const Json& object, std::string where, const std::string& pointer) const {
    return {object, file_, std::move(where), pointer_ + "/" + pointer};
  }

  const JsonFile& file() const { return *file_; }
  const std::string& pointer() const { return pointer_; }
  std::string pointer_to(const std::string& key) const { return pointer_ + "/" + pointer_part(key); }
  auto items() const { return object_.items(); }

  /// \throws Error kBadInput for any other key.
  void validate_keys(const std::vector<std::string>& known) const;
  bool has(const std::string& key) const { return object_.contains(key); }
  /// Each \throws Error kBadInput if the key is missing, or its value is of another type.
  const Json& at(const std::string& key) const;
  std::uint64_t unsigned_at(const std::string& key) const;  // whole, not negative
  bool bool_at(const std::string& key) const;
  const std::string& string_at(const std::string& key) const;
  const Json& array_at(const std::string& key) const;
  std::vector<std::string> strings_at(const std::string& key, const char* expected = "an array of strings") const;
  std::vector<std::uint64_t> sizes_at(const std::string& key, const char* expected) const;
  JsonObject object_at(const std::string& key) const;
  /// The objects of an array, called "key[0]" and so on.
  std::vector<JsonObject> objects_at(const std::string& key) const;

  /// `what`, after the object's name.
  std::string message(const std::string& what) const { return where_.empty() ? what : where_ + ": " + what; }
  [[noreturn]] void fail(const std::string& key, const std::string& expected, const std::string& hint = {}) const;

 private:
  JsonObject(const Json& object, std::shared_ptr<const JsonFile> file, std::string where, std::string pointer);

  const Json& object_;
  std::shared_ptr<const JsonFile> file_;
  std::string where_;
  std::string pointer_;
};

/// `value` as text for an error: its JSON, cut short.
std::string brief(const Json& value);

}  // namespace reshard
