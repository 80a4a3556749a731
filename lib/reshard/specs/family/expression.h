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

/// Value of an expression: null, a boolean, a whole number, or another value of config.json (borrowed).
using ConfigValue = std::variant<std::monostate, bool, std::uint64_t, const Json*>;

/// Returns the value of `key` in `config`; "a.b" is a key of a nested object. Returns nullptr if the key is absent.
const Json* find_key(const Json& config, const std::string& key);

/// A size or a condition over the keys of config.json, as used in families: "num_attention_heads * head_dim", "layer %
/// decoder_sparse_step == 0 and layer not in mlp_only_layers". Numbers are whole and not negative.
///
///   or, and, not          for conditions
///   == != < <= > >=       for numbers; == and != for any two values
///   in, not in            for a list of config.json
///   + - * / %             divisions must be exact, and differences not negative
///   ceil(a / b), floor(a / b)   division rounded up or down; operands may be decimal numbers
///   name, a.b             a key of config.json, or of a nested object; `layer` is the number of the layer
///   name[i]               an item of a list, or a character of a string, counted from 0; null if absent. A number,
///                         which all layers share, is returned unchanged
///   name[i].a.b           a key of an item that is an object; null if absent
///   length(name)          the number of items in a list
///   "text" true false null
class Expression {
 public:
  /// An empty expression; must not be evaluated.
  Expression() = default;

  /// \throws Error kBadInput, with the position in the text but without a file.
  static Expression parse(std::string_view text);

  explicit operator bool() const { return root_ != nullptr; }
  const std::string& text() const { return text_; }
  /// Returns the keys in the expression, in the order of the text, possibly with duplicates.
  std::vector<std::string> keys() const;

  using Lookup = std::function<ConfigValue(const std::string& key)>;

  /// Evaluates a size: positive and at most 2^40. Its keys must be whole numbers.
  /// \throws Error kBadInput, without a file, if a value has the wrong type or the result is not a size; and errors of
  ///         `lookup`.
  std::uint64_t size(const Lookup& lookup) const;
  /// Evaluates a condition.
  /// \throws like size.
  bool holds(const Lookup& lookup) const;
  /// Evaluates a size or a condition, which may be null.
  /// \throws like size.
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
