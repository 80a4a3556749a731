#include "reshard/formats/pickle/plain_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/zip/zip_plan.h"

namespace reshard {
namespace {

constexpr int kMaxDepth = 16;  // nesting of lists; a list may contain itself

class PlainReader {
 public:
  PlainReader(const Pickle& pickle, const std::string& what, const std::filesystem::path& path)
      : pickle_(pickle), what_(what), path_(path) {}

  PlainValue read(PickleRef node, int depth = 0) {
    if (depth > kMaxDepth || ++count_ > kMaxPlainValues)
      throw fail(fmt::format("{} has more values than any hyperparameter", what_));
    switch (pickle_.kind(node)) {
      case PickleKind::kNone: return {};
      case PickleKind::kBool: return {pickle_.integer(node) != 0};
      case PickleKind::kInt: return {pickle_.integer(node)};
      case PickleKind::kFloat: return {pickle_.real(node)};
      case PickleKind::kString: return {std::string(pickle_.text(node))};
      case PickleKind::kTuple:
      case PickleKind::kSet:
      case PickleKind::kList: return {list(pickle_.items(node), depth)};
      case PickleKind::kDict:
      case PickleKind::kObject:
        if (pickle_.is_object_of(node, "builtins", "set")) return {set(node, depth)};
        if (is_mapping(pickle_, node)) return {dict(mapping_items(pickle_, node), depth)};
        break;
      case PickleKind::kBigInt:
      case PickleKind::kBytes:
      case PickleKind::kGlobal:
      case PickleKind::kPersistentId: break;
    }
    throw fail(fmt::format("{} is {}, not a plain value", what_, pickle_.describe(node)));
  }

 private:
  PlainValue::List list(std::span<const PickleRef> items, int depth) {
    PlainValue::List values;
    for (const PickleRef item : items) values.push_back(read(item, depth + 1));
    return values;
  }

  /// Reads a set in protocol 2: a call of `set` with a list.
  PlainValue::List set(PickleRef node, int depth) {
    const auto arguments = pickle_.items(pickle_.args(node));
    return arguments.empty() ? PlainValue::List() : list(pickle_.items(arguments.front()), depth);
  }

  PlainValue::Dict dict(const std::vector<PicklePair>& items, int depth) {
    std::vector<PickleRef> keys;
    PlainValue::Dict values;
    for (const auto& [key, value] : items) {
      if (pickle_.kind(key) != PickleKind::kString)
        throw fail(fmt::format("{} has the key {}, not a string", what_, pickle_.describe(key)));
      keys.push_back(key);
      values.emplace_back(std::string(pickle_.text(key)), read(value, depth + 1));
    }
    refuse_twins(pickle_, keys, what_, path_);
    return values;
  }

  Error fail(const std::string& message) const { return Error(ErrorKind::kUnsupported, message).in(path_); }

  const Pickle& pickle_;
  const std::string& what_;
  const std::filesystem::path& path_;
  std::size_t count_ = 0;
};

/// Writes a list or dict: opcode `empty` creates it, opcode `add` adds the items above the mark.
template <typename Items, typename Put>
void put_all(Pickler& pickler, char empty, char add, const Items& items, const Put& put) {
  pickler.op(empty);
  if (items.empty()) return;
  pickler.op('(');
  for (const auto& item : items) put(item);
  pickler.op(add);
}

}  // namespace

PlainValue::PlainValue() = default;
PlainValue::PlainValue(Value held) : value(std::move(held)) {}
PlainValue::PlainValue(const PlainValue& other) = default;
PlainValue::PlainValue(PlainValue&& other) noexcept = default;
PlainValue& PlainValue::operator=(const PlainValue& other) = default;
PlainValue& PlainValue::operator=(PlainValue&& other) noexcept = default;
PlainValue::~PlainValue() = default;

bool operator==(const PlainValue& a, const PlainValue& b) {
  const auto* const real_a = std::get_if<double>(&a.value);
  const auto* const real_b = std::get_if<double>(&b.value);
  if (real_a != nullptr && real_b != nullptr && std::isnan(*real_a) && std::isnan(*real_b)) return true;
  return a.value == b.value;
}

PlainValue read_plain_value(const Pickle& pickle, PickleRef node, const std::string& what,
                            const std::filesystem::path& path) {
  return PlainReader(pickle, what, path).read(node);
}

void put_plain_value(Pickler& pickler, const PlainValue& value) {
  std::visit(
      [&](const auto& it) {
        using Kind = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<Kind, std::monostate>)
          pickler.op('N');
        else if constexpr (std::is_same_v<Kind, bool>)
          pickler.op(it ? '\x88' : '\x89');
        else if constexpr (std::is_same_v<Kind, std::int64_t>)
          pickler.signed_integer(it);
        else if constexpr (std::is_same_v<Kind, double>)
          pickler.real(it);
        else if constexpr (std::is_same_v<Kind, std::string>)
          pickler.string(it);
        else if constexpr (std::is_same_v<Kind, PlainValue::List>)
          put_all(pickler, ']', 'e', it, [&](const PlainValue& item) { put_plain_value(pickler, item); });
        else
          put_all(pickler, '}', 'u', it, [&](const auto& item) {
            pickler.string(item.first);
            put_plain_value(pickler, item.second);
          });
      },
      value.value);
}

std::string plain_value_file(const std::string& archive, const PlainValue& value) {
  Pickler pickler;
  put_plain_value(pickler, value);
  ZipPlan zip;
  zip.add(archive + "/data.pkl", pickler.finish());
  zip.add(archive + "/byteorder", "little");
  zip.add(archive + "/version", "3\n");
  return std::move(zip.finish().front().bytes);
}

std::size_t num_values(const PlainValue& value) {
  std::size_t count = 1;
  if (const auto* const list = std::get_if<PlainValue::List>(&value.value))
    for (const PlainValue& item : *list) count += num_values(item);
  if (const auto* const dict = std::get_if<PlainValue::Dict>(&value.value))
    for (const auto& [key, item] : *dict) count += num_values(item);
  return count;
}

std::string to_string(const PlainValue& value) {
  const auto joined = [](const auto& items, const auto& text_of) {
    std::string text;
    for (const auto& item : items) text += (text.empty() ? "" : ", ") + text_of(item);
    return text;
  };
  return std::visit(
      [&](const auto& it) -> std::string {
        using Kind = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<Kind, std::monostate>) return "None";
        if constexpr (std::is_same_v<Kind, bool>) return it ? "True" : "False";
        if constexpr (std::is_same_v<Kind, std::int64_t>) return fmt::format("{}", it);
        if constexpr (std::is_same_v<Kind, double>) {
          std::string text = fmt::format("{}", it);
          return text.find_first_not_of("-0123456789") == text.npos ? text + ".0" : text;
        }
        if constexpr (std::is_same_v<Kind, std::string>) return printable(it);
        if constexpr (std::is_same_v<Kind, PlainValue::List>)
          return "[" + joined(it, [](const PlainValue& item) { return to_string(item); }) + "]";
        if constexpr (std::is_same_v<Kind, PlainValue::Dict>)
          return "{" +
                 joined(it, [](const auto& item) { return printable(item.first) + ": " + to_string(item.second); }) +
                 "}";
        return {};
      },
      value.value);
}

}  // namespace reshard
