#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reshard/base/json_fwd.h"

namespace reshard {

class JsonObject;

/// What an expression is worth: null, a switch, a whole number, or some other value of config.json (borrowed).
using ConfigValue = std::variant<std::monostate, bool, std::uint64_t, const Json*>;

/// The value of `key` in `config`, "a.b" for a key of an object in it. Returns nullptr if the key is absent.
const Json* find_key(const Json& config, const std::string& key);

/// A size or a condition over the keys of config.json, as families are written in: "num_attention_heads * head_dim",
/// "layer % decoder_sparse_step == 0 and layer not in mlp_only_layers". Numbers are whole and not negative.
///
///   or, and, not          of conditions
///   == != < <= > >=       of numbers; == and != of any two values
///   in, not in            a list of config.json
///   + - * / %             a division has to divide evenly, a difference is not negative
///   ceil(a / b), floor(a / b)   the same division, rounded up or down; decimal numbers may be in it
///   name, a.b             a key of config.json, of an object in it; `layer` is the layer's number
///   name[i]               an item of a list, or a character of a text, counted from 0; null where there is none. Of a
///                         number, which all layers share, the number
///   name[i].a.b           a key of an item that is an object; null if it is absent
///   length(name)          how many items a list has
///   "text" true false null
class Expression {
 public:
  /// Nothing at all; not to be evaluated.
  Expression() = default;

  /// \throws Error kBadInput, with the place in the text. It knows no file.
  static Expression parse(std::string_view text);

  explicit operator bool() const { return root_ != nullptr; }
  const std::string& text() const { return text_; }
  /// The keys it names, in the order of the text, some perhaps twice.
  std::vector<std::string> keys() const;

  using Lookup = std::function<ConfigValue(const std::string& key)>;

  /// A size: positive and at most 2^40. Keys in it are whole numbers.
  /// \throws Error kBadInput where a value is not of the kind that is needed, or the result is no such number; and what
  /// `lookup` throws. It knows no file.
  std::uint64_t size(const Lookup& lookup) const;
  /// A condition.
  /// \throws as size.
  bool holds(const Lookup& lookup) const;
  /// Either of them, or null.
  /// \throws as size.
  ConfigValue value(const Lookup& lookup) const;

  struct Node;

 private:
  std::string text_;
  std::shared_ptr<const Node> root_;
};

/// The size or condition under a key of a description: an expression in a string, or the plain value.
/// \throws Error kBadInput, naming the key and the line.
Expression expression_at(const JsonObject& object, const std::string& key);
/// Likewise, for one of several under `key`; `pointer` names it.
Expression expression_of(const JsonObject& object, const Json& value, const std::string& pointer,
                         const std::string& key);

}  // namespace reshard
