#include "reshard/specs/family/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {

struct Expression::Node {
  enum class Kind : std::uint8_t { kLiteral, kText, kKey, kItem, kField, kNot, kCeil, kFloor, kLength, kBinary };

  Kind kind = Kind::kLiteral;
  ConfigValue literal;
  std::shared_ptr<const Json> text;
  std::string word;  // a key, also of an item, or a binary operator
  std::vector<Node> operands;
};

namespace {

using Node = Expression::Node;
using Kind = Node::Kind;

constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 40;  // far more than any size of a model
constexpr std::size_t kMaxText = 4096;
constexpr int kMaxDepth = 64;

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Splits the text into words and builds the tree; operators that bind tighter are further down.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {
    if (text.size() > kMaxText) fail("is longer than any valid expression");
    advance();
  }

  Node parse() {
    Node node = binary(0);
    if (!word_.empty()) fail(fmt::format("\"{}\" is too much", printable(word_)));
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kBadInput, fmt::format("the expression \"{}\" cannot be read at its character {}: {}",
                                                  printable(text_), begin_ + 1, problem));
  }

  void advance() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    begin_ = at_;
    if (at_ == text_.size()) {
      word_ = {};
      return;
    }
    const char first = text_[at_++];
    if (begins_name(first)) {
      while (at_ < text_.size() && (begins_name(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.')) ++at_;
    } else if (is_digit(first)) {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    } else if (first == '"') {
      while (at_ < text_.size() && text_[at_] != '"') ++at_;
      if (at_ == text_.size()) fail("the quoted text does not end");
      ++at_;
    } else if ((first == '=' || first == '!' || first == '<' || first == '>') && at_ < text_.size() &&
               text_[at_] == '=') {
      ++at_;
    } else if (std::string_view("+-*/%()[]<>.").find(first) == std::string_view::npos) {
      fail("this character has no meaning here");
    }
    word_ = text_.substr(begin_, at_ - begin_);
  }

  bool take(std::string_view word) {
    if (word_ != word) return false;
    advance();
    return true;
  }

  /// The operators, loosest first.
  static constexpr std::array<std::array<std::string_view, 8>, 5> kLevels = {{
      {"or"},
      {"and"},
      {"==", "!=", "<", "<=", ">", ">=", "in", "not in"},
      {"+", "-"},
      {"*", "/", "%"},
  }};

  /// Returns the operator of this level at the current word, or an empty text.
  std::string_view operator_at(std::size_t level) {
    if (level == 2 && word_ == "not") {
      advance();
      if (word_ != "in") fail("\"not\" is valid only before \"in\"");
      advance();
      return "not in";
    }
    for (const std::string_view op : kLevels[level])
      if (!op.empty() && take(op)) return op;
    return {};
  }

  Node binary(std::size_t level) {
    if (level == kLevels.size()) return atom();
    if (level == 2 && word_ == "not") return negation();
    Node left = binary(level + 1);
    for (;;) {
      const std::string_view op = operator_at(level);
      if (op.empty()) return left;
      Node node;
      node.kind = Kind::kBinary;
      node.word = op;
      node.operands.push_back(std::move(left));
      node.operands.push_back(binary(level + 1));
      left = std::move(node);
      if (level == 2) return left;  // comparisons cannot be chained
    }
  }

  Node negation() {
    const Depth depth(*this);
    advance();
    Node node;
    node.kind = Kind::kNot;
    node.operands.push_back(binary(2));
    return node;
  }

  Node atom() {
    const Depth depth(*this);
    if (word_.empty()) fail("it ends where a number, a key or a bracket is expected");
    if (take("(")) {
      Node node = binary(0);
      if (!take(")")) fail("a closing bracket is expected");
      return node;
    }
    Node node;
    if (is_digit(word_.front())) {
      const auto number = parse_unsigned(word_);
      if (!number) fail("the number is too large");
      node.literal = *number;
    } else if (word_.front() == '"') {
      node.kind = Kind::kText;
      node.text = std::make_shared<const Json>(word_.substr(1, word_.size() - 2));
    } else if (word_ == "true" || word_ == "false") {
      node.literal = word_ == "true";
    } else if (word_ == "null") {
      node.literal = std::monostate{};
    } else if (word_ == "ceil" || word_ == "floor") {
      const std::string word(word_);
      advance();
      if (!take("(")) fail("\"" + word + "\" is followed by a division in brackets");
      node.kind = word == "ceil" ? Kind::kCeil : Kind::kFloor;
      node.operands.push_back(binary(0));
      const Node& inner = node.operands.front();
      if (inner.kind != Kind::kBinary || inner.word != "/") fail("\"" + word + "\" takes a division");
      if (word_ != ")") fail("a closing bracket is expected");
    } else if (word_ == "length") {
      advance();
      if (!take("(")) fail("\"length\" is followed by a list in brackets");
      node.kind = Kind::kLength;
      if (word_.empty() || !begins_name(word_.front())) fail("\"length\" takes a key");
      node.operands.push_back(atom());
      if (node.operands.front().kind != Kind::kKey) fail("\"length\" takes a key");
      if (word_ != ")") fail("a closing bracket is expected");
    } else if (begins_name(word_.front()) && word_ != "and" && word_ != "or" && word_ != "not" && word_ != "in") {
      node.kind = Kind::kKey;
      node.word = word_;
    } else {
      fail(fmt::format("found \"{}\", expected a number, a key or a bracket", printable(word_)));
    }
    advance();
    if (node.kind != Kind::kKey || !take("[")) return node;
    Node item;
    item.kind = Kind::kItem;
    item.operands.push_back(std::move(node));
    item.operands.push_back(binary(0));
    if (!take("]")) fail("a closing square bracket is expected");
    if (!take(".")) return item;
    if (word_.empty() || !begins_name(word_.front())) fail("a key of the item is expected");
    Node field;
    field.kind = Kind::kField;
    field.word = word_;
    field.operands.push_back(std::move(item));
    advance();
    return field;
  }

  /// Limits the nesting of brackets, because the text may be untrusted.
  struct Depth {
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) parser_.fail("its brackets are nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    Parser& parser_;
  };

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  // start of word_
  std::string_view word_;
  int depth_ = 0;
};

/// Converts any value to JSON, to compare and print it.
Json as_json(const ConfigValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag;
  if (const std::uint64_t* number = std::get_if<std::uint64_t>(&value)) return *number;
  if (const Json* const* json = std::get_if<const Json*>(&value)) return **json;
  return nullptr;
}

Error not_a_size(const std::string& what, const ConfigValue& value) {
  const std::uint64_t* number = std::get_if<std::uint64_t>(&value);
  return Error(ErrorKind::kBadInput, what + " is " + brief(as_json(value)) + ", expected a positive whole number" +
                                         (number && *number > kMaxSize ? " of at most 2^40" : ""));
}

class Evaluator {
 public:
  /// When a size is evaluated, keys must have valid values for sizes.
  Evaluator(const std::string& text, const Expression::Lookup& lookup, bool of_size)
      : text_(text), lookup_(lookup), of_size_(of_size) {}

  ConfigValue value(const Node& node) {
    switch (node.kind) {
      case Kind::kLiteral: return node.literal;
      case Kind::kText: return node.text.get();
      case Kind::kKey: return key(node.word);
      case Kind::kNot: return !flag(node.operands.front());
      case Kind::kItem: return item(node);
      case Kind::kField: return field(node);
      case Kind::kLength: return length(node.operands.front());
      case Kind::kCeil:
      case Kind::kFloor: return rounded_division(node);
      case Kind::kBinary: return binary(node);
    }
    return {};
  }

  bool flag(const Node& node) {
    const ConfigValue of_node = value(node);
    if (const bool* flag = std::get_if<bool>(&of_node)) return *flag;
    fail_kind(node, of_node, "true or false");
  }

 private:
  /// \param form  the part of the expression, with its numbers.
  [[noreturn]] void fail(const std::string& form, const char* problem) const {
    throw Error(ErrorKind::kBadInput, fmt::format("\"{}\" cannot be computed: {} {}", text_, form, problem));
  }

  [[noreturn]] void fail_kind(const Node& node, const ConfigValue& value, const char* expected) const {
    const std::string what = node.kind == Kind::kKey ? "\"" + node.word + "\"" : "a part of \"" + text_ + "\"";
    throw Error(ErrorKind::kBadInput, fmt::format("{} is {}, expected {}", what, brief(as_json(value)), expected));
  }

  ConfigValue key(const std::string& name) {
    const ConfigValue value = lookup_(name);
    const std::uint64_t* number = std::get_if<std::uint64_t>(&value);
    if (of_size_ && (!number || *number > kMaxSize)) throw not_a_size("\"" + name + "\"", value);
    return value;
  }

  std::uint64_t number(const Node& node) {
    const ConfigValue of_node = value(node);
    if (const std::uint64_t* number = std::get_if<std::uint64_t>(&of_node)) return *number;
    fail_kind(node, of_node, "a whole number");
  }

  /// Returns an item of a list, or a character of a string; null if absent. A number applies to all layers.
  ConfigValue item(const Node& node) {
    const ConfigValue of_list = lookup_(node.operands[0].word);
    const std::uint64_t index = number(node.operands[1]);
    if (std::holds_alternative<std::monostate>(of_list)) return {};
    if (std::holds_alternative<std::uint64_t>(of_list)) return of_list;
    const Json* const* list = std::get_if<const Json*>(&of_list);
    if (list && (*list)->is_string()) return character((*list)->get_ref<const std::string&>(), index);
    if (!list || !(*list)->is_array()) fail_kind(node.operands[0], of_list, "a list");
    return index < (*list)->size() ? plain((**list)[index]) : ConfigValue();
  }

  /// Returns a key of an item that is an object; null if the item or the key is absent.
  ConfigValue field(const Node& node) {
    const ConfigValue of_item = item(node.operands.front());
    if (std::holds_alternative<std::monostate>(of_item)) return of_item;
    const Json* const* object = std::get_if<const Json*>(&of_item);
    if (!object || !(*object)->is_object()) fail_kind(node.operands.front(), of_item, "an object");
    const Json* found = find_key(**object, node.word);
    return found ? plain(*found) : ConfigValue();
  }

  static ConfigValue plain(const Json& value) {
    if (value.is_null()) return {};
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    return &value;
  }

  /// An operand of ceil or floor: a whole or a decimal number.
  using Decimal = std::variant<std::uint64_t, double>;

  static double real(const Decimal& number) {
    return std::visit([](auto value) { return static_cast<double>(value); }, number);
  }

  /// Evaluates each operand once; with decimal numbers in double precision, as Python does.
  Decimal decimal(const Node& node) {
    const bool of_list = node.kind == Kind::kItem || node.kind == Kind::kField;
    if (node.kind == Kind::kKey || of_list) {
      const ConfigValue of_node = of_list ? value(node) : lookup_(node.word);
      const Json* const* json = std::get_if<const Json*>(&of_node);
      if (json && (*json)->is_number_float()) return (*json)->get<double>();
      if (!of_list) return number(node);
      if (const std::uint64_t* whole = std::get_if<std::uint64_t>(&of_node)) return *whole;
      fail_kind(node, of_node, "a number");
    }
    if (node.kind != Kind::kBinary || std::string_view("+-*/").find(node.word) == std::string_view::npos)
      return number(node);
    const Decimal left = decimal(node.operands[0]), right = decimal(node.operands[1]);
    const auto* a = std::get_if<std::uint64_t>(&left);
    const auto* b = std::get_if<std::uint64_t>(&right);
    if (a && b) return arithmetic(node.word, *a, *b);
    return real_arithmetic(node.word, real(left), real(right));
  }

  double real_arithmetic(const std::string& op, double a, double b) const {
    if (op == "/" && b == 0) fail(fmt::format("{} / {}", a, b), "divides by 0");
    return op == "+" ? a + b : op == "-" ? a - b : op == "*" ? a * b : a / b;
  }

  /// Evaluates ceil or floor.
  std::uint64_t rounded_division(const Node& node) {
    const Node& division = node.operands.front();
    const Decimal left = decimal(division.operands[0]), right = decimal(division.operands[1]);
    const auto* a = std::get_if<std::uint64_t>(&left);
    const auto* b = std::get_if<std::uint64_t>(&right);
    if (!a || !b) return rounded(node.kind, real_arithmetic(division.word, real(left), real(right)));
    if (*b == 0) fail(fmt::format("{} / {}", *a, *b), "divides by 0");
    return *a / *b + (node.kind == Kind::kCeil && *a % *b != 0 ? 1 : 0);
  }

  std::uint64_t rounded(Kind kind, double of) const {
    const double whole = kind == Kind::kCeil ? std::ceil(of) : std::floor(of);
    if (!(whole >= 0)) fail(fmt::format("{}", of), "is less than 0");
    if (whole > static_cast<double>(kMaxSize)) fail(fmt::format("{}", of), "is larger than any size");
    return static_cast<std::uint64_t>(whole);
  }

  ConfigValue length(const Node& node) {
    const ConfigValue of_list = lookup_(node.word);
    const Json* const* list = std::get_if<const Json*>(&of_list);
    if (!list || !(*list)->is_array()) fail_kind(node, of_list, "a list");
    return (*list)->size();
  }

  static ConfigValue character(const std::string& text, std::uint64_t index) {
    static const std::vector<Json> kCharacters = [] {
      std::vector<Json> all;
      all.reserve(128);
      for (int c = 0; c < 128; ++c) all.emplace_back(std::string(1, static_cast<char>(c)));
      return all;
    }();
    if (index >= text.size()) return {};
    const auto code = static_cast<unsigned char>(text[index]);
    return code < kCharacters.size() ? ConfigValue(&kCharacters[code]) : ConfigValue();
  }

  ConfigValue binary(const Node& node) {
    const std::string& op = node.word;
    const Node& left = node.operands[0];
    const Node& right = node.operands[1];
    if (op == "and") return flag(left) && flag(right);
    if (op == "or") return flag(left) || flag(right);
    if (op == "==") return as_json(value(left)) == as_json(value(right));
    if (op == "!=") return as_json(value(left)) != as_json(value(right));
    if (op == "in") return is_in(left, right);
    if (op == "not in") return !is_in(left, right);
    const std::uint64_t a = number(left);
    const std::uint64_t b = number(right);
    if (op == "<") return a < b;
    if (op == "<=") return a <= b;
    if (op == ">") return a > b;
    if (op == ">=") return a >= b;
    return arithmetic(op, a, b);
  }

  std::uint64_t arithmetic(const std::string& op, std::uint64_t a, std::uint64_t b) const {
    std::optional<std::uint64_t> result;
    if (op == "+") result = checked_add(a, b);
    if (op == "*") result = checked_mul(a, b);
    if (op == "-" && a >= b) result = a - b;
    if (op == "/" && b != 0 && a % b == 0) result = a / b;
    if (op == "%" && b != 0) result = a % b;
    if (result) return *result;
    const std::string form = fmt::format("{} {} {}", a, op, b);
    if (op == "-") fail(form, "is less than 0");
    if (op == "+" || op == "*") fail(form, "is larger than any size");
    fail(form, b == 0 ? "divides by 0" : "is not a whole number");
  }

  bool is_in(const Node& item, const Node& list) {
    const Json wanted = as_json(value(item));
    const ConfigValue of_list = value(list);
    if (std::holds_alternative<std::monostate>(of_list)) return false;
    const Json* const* json = std::get_if<const Json*>(&of_list);
    if (!json || !(*json)->is_array()) fail_kind(list, of_list, "a list");
    return std::find((*json)->begin(), (*json)->end(), wanted) != (*json)->end();
  }

  const std::string& text_;
  const Expression::Lookup& lookup_;
  bool of_size_;
};

void add_keys(const Node& node, std::vector<std::string>& keys) {
  if (node.kind == Kind::kKey) keys.push_back(node.word);
  for (const Node& operand : node.operands) add_keys(operand, keys);
}

}  // namespace

const Json* find_key(const Json& config, const std::string& key) {
  const Json* given = &config;
  for (const std::string& name : split(key, '.')) {
    if (!given->is_object()) return nullptr;
    const auto found = given->find(name);
    if (found == given->end()) return nullptr;
    given = &*found;
  }
  return given;
}

Expression Expression::parse(std::string_view text) {
  Expression expression;
  expression.text_ = text;
  expression.root_ = std::make_shared<const Node>(Parser(expression.text_).parse());
  return expression;
}

std::vector<std::string> Expression::keys() const {
  std::vector<std::string> keys;
  if (root_) add_keys(*root_, keys);
  return keys;
}

std::uint64_t Expression::size(const Lookup& lookup) const {
  const ConfigValue value = Evaluator(text_, lookup, true).value(*root_);
  const std::uint64_t* number = std::get_if<std::uint64_t>(&value);
  if (number && (*number == 0 || *number > kMaxSize) && root_->kind == Kind::kLiteral)
    throw Error(ErrorKind::kBadInput, text_ + " is not a size: expected a whole number from 1 to 2^40");
  if (!number || *number == 0 || *number > kMaxSize)
    throw not_a_size(root_->kind == Kind::kKey ? "\"" + text_ + "\"" : text_, value);
  return *number;
}

ConfigValue Expression::value(const Lookup& lookup) const {
  return Evaluator(text_, lookup, false).value(*root_);
}

bool Expression::holds(const Lookup& lookup) const {
  return Evaluator(text_, lookup, false).flag(*root_);
}

Expression expression_at(const JsonObject& object, const std::string& key) {
  return expression_of(object, object.at(key), object.pointer_to(key), key);
}

Expression expression_of(const JsonObject& object, const Json& value, const std::string& pointer,
                         const std::string& key) {
  const std::string name = "\"" + printable(key) + "\"";
  if (!value.is_string() && !value.is_boolean() && !value.is_number_unsigned())
    throw object.file().error(
        pointer, object.message(fmt::format("{} has {}, expected a whole number, or an expression in a string", name,
                                            brief(value))));
  try {
    return Expression::parse(value.is_string() ? value.get_ref<const std::string&>() : value.dump());
  } catch (const Error& error) {
    throw object.file().error(pointer, object.message(name + ": " + error.message()));
  }
}

}  // namespace reshard
