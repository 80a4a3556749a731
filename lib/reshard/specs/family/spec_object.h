#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {

/// An object in a description. Keys that are not known are errors.
class SpecObject {
 public:
  /// `where` names it for people, and is empty for the whole file.
  SpecObject(const Json& json, const DescriptionFile& file, std::string pointer, std::string where)
      : json_(json), file_(file), pointer_(std::move(pointer)), where_(std::move(where)) {
    if (!json.is_object())
      throw file.error(pointer_,
                       (where_.empty() ? "the file" : where_) + " is " + brief(json) + ", expected an object");
  }

  /// \throws Error for any other key.
  void validate_keys(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      Error error = file_.error(pointer_to(key), prefix() + "the key \"" + printable(key) + "\" is not known");
      const std::string guess = nearest(key, known);
      throw error.hint(guess.empty() ? "known are " + join(known, ", ") : "did you mean \"" + guess + "\"?");
    }
  }

  bool has(const std::string& key) const { return json_.contains(key); }
  std::string pointer_to(const std::string& key) const { return pointer_ + "/" + pointer_part(key); }
  const std::string& pointer() const { return pointer_; }
  const DescriptionFile& file() const { return file_; }

  const Json& at(const std::string& key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw file_.error(pointer_, prefix() + "the key \"" + printable(key) + "\" is missing");
    return *found;
  }

  [[noreturn]] void fail(const std::string& key, const std::string& expected, const std::string& hint = {}) const {
    throw file_
        .error(pointer_to(key), prefix() + "\"" + printable(key) + "\" is " + brief(at(key)) + ", expected " + expected)
        .hint(hint);
  }

  const std::string& string_at(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(key, "a string");
    return value.get_ref<const std::string&>();
  }

  bool bool_at(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail(key, "true or false");
    return value.get<bool>();
  }

  const Json& array_at(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(key, "an array");
    return value;
  }

  std::vector<std::string> strings_at(const std::string& key) const {
    std::vector<std::string> strings;
    for (const Json& item : array_at(key)) {
      if (!item.is_string()) fail(key, "an array of strings");
      strings.push_back(item.get<std::string>());
    }
    return strings;
  }

  Expression expression_at(const std::string& key) const { return expression_of(at(key), pointer_to(key), key); }

  /// A size or a condition at `pointer` under `key`: an expression, or the plain value.
  Expression expression_of(const Json& value, const std::string& pointer, const std::string& key) const {
    if (value.is_string()) return expression(value.get_ref<const std::string&>(), pointer, key);
    if (value.is_boolean()) return Expression::parse(value.get<bool>() ? "true" : "false");
    if (value.is_number_unsigned()) return Expression::parse(std::to_string(value.get<std::uint64_t>()));
    throw file_.error(pointer, fmt::format("{}\"{}\" has {}, expected a whole number, or an expression in a string",
                                           prefix(), printable(key), brief(value)));
  }

  /// The expression `text`, the value of `key` at `pointer`.
  Expression expression(const std::string& text, const std::string& pointer, const std::string& key) const {
    try {
      return Expression::parse(text);
    } catch (const Error& error) {
      throw file_.error(pointer, prefix() + "\"" + printable(key) + "\": " + error.message());
    }
  }

 private:
  std::string prefix() const { return where_.empty() ? std::string() : where_ + ": "; }

  const Json& json_;
  const DescriptionFile& file_;
  std::string pointer_;
  std::string where_;
};

}  // namespace reshard
