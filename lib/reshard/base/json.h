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

/// Object type of OrderedJson: members in insertion order, with logarithmic lookup by key. nlohmann's ordered_map
/// searches linearly, so reading a file takes quadratic time. A tree rather than a hash table, because keys come from
/// files and could be chosen to collide.
/// Invariant: `places_` is empty for up to kFewMembers members, and otherwise contains the index of every key.
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

  /// Adds a member unless the key exists.
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

  /// Takes time linear in the number of members.
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
  static constexpr size_type kFewMembers = 16;  // searched linearly

  void find_places() {
    if (size() <= kFewMembers) return;
    for (size_type i = 0; i < size(); ++i) places_.emplace((begin() + static_cast<difference_type>(i))->first, i);
  }

  /// Returns the index of the member, or size() if the key is absent.
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

/// Maximum nesting depth of objects and arrays. Same limit as serde_json, which the reference reader of safetensors
/// uses.
inline constexpr std::size_t kMaxJsonDepth = 128;

/// Parses a complete, untrusted JSON text.
/// \throws Error kBadInput, naming `path` and the byte, if the text is not exactly one JSON value, has a duplicate key
///         in an object, or is nested deeper than kMaxJsonDepth.
Json parse_json(std::string_view text, const std::filesystem::path& path, JsonDialect dialect = JsonDialect::kStrict);

/// Same as parse_json, but keeps the keys in the order of the text.
OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path,
                               JsonDialect dialect = JsonDialect::kStrict);

/// Serializes a value. Writes NaN, Infinity and -Infinity, for which the library's own dump() writes null.
/// \param indent  spaces per level; if negative, everything is on one line without spaces.
/// \param ascii   escapes non-ASCII characters, as Python's json module does.
std::string json_text(const Json& value, int indent = -1, bool ascii = false);
std::string json_text(const OrderedJson& value, int indent = -1, bool ascii = false);

/// Returns `text` as a JSON string; non-ASCII characters are not escaped.
/// \throws Json::exception if `text` is not UTF-8.
std::string json_string(const std::string& text);

/// Positions of the values of a JSON text. Uses memory linear in the text, however deeply it is nested.
class JsonPlaces {
 public:
  using Node = std::size_t;  // index of a value, in the order of the text

  /// Adds the next value of the text, the root first.
  /// \param around  the object or array that directly contains the value; ignored for the root.
  /// \param key     key or index of the value.
  /// \param byte    approximate position of the start of the value.
  Node add(Node around, const std::string& key, std::uint64_t byte);

  /// Returns the line, from 1, of the value that a JSON pointer such as "/modules/3/plan" names. If that value does not
  /// exist, returns the line of its nearest existing ancestor.
  std::uint64_t line_of(const std::string& pointer) const;

 private:
  friend struct LocatedJson parse_located_json(std::string_view text, const std::filesystem::path& path);

  std::vector<std::uint64_t> newlines_;  // byte positions of the line breaks in the text
  std::vector<std::uint64_t> bytes_;     // byte position of each value
  std::map<std::pair<Node, std::string>, Node> members_;
};

struct LocatedJson {
  Json json;
  JsonPlaces places;
};

/// parse_json for hand-written text: also returns the line of each value.
/// \throws like parse_json, with the line.
LocatedJson parse_located_json(std::string_view text, const std::filesystem::path& path);

/// Escapes `key` as a component of a JSON pointer (RFC 6901).
std::string pointer_part(const std::string& key);

/// A JSON file, for errors.
struct JsonFile {
  std::filesystem::path path;
  /// Returns the line of the value at a JSON pointer; null if lines are not needed.
  std::function<std::uint64_t(const std::string& pointer)> line_of = {};

  /// Returns 0 if lines are unknown.
  std::uint64_t line(const std::string& pointer) const { return line_of ? line_of(pointer) : 0; }
  /// Returns an error about the value at a JSON pointer.
  Error error(const std::string& pointer, const std::string& message) const;
};

/// Typed access to one object of a JSON file, with errors that name the file, the key and, if known, the line.
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
  /// Each \throws Error kBadInput if the key is missing, or its value has another type.
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

/// Serializes and truncates `value` for an error message.
std::string brief(const Json& value);

}  // namespace reshard
