#include "reshard/formats/pickle/pickle_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"

namespace reshard {
namespace {

constexpr std::size_t kShownBytes = 100;  // shown of a name that is too long
constexpr std::size_t kMostDims = 64;     // limits what is read again for each tensor

/// Protocol 0 passes the items of an OrderedDict to its constructor, as a list of pairs.
void take_constructor_items(const Pickle& pickle, PickleRef object, std::vector<PicklePair>& pairs) {
  const auto args = pickle.items(pickle.args(object));
  for (const PickleRef arg : args) {
    const auto dict = pickle.pairs(arg);
    pairs.insert(pairs.end(), dict.begin(), dict.end());
    for (const PickleRef item : pickle.items(arg))
      if (const auto pair = pickle.items(item); pair.size() == 2) pairs.emplace_back(pair[0], pair[1]);
  }
}

}  // namespace

bool is_mapping(const Pickle& pickle, PickleRef node) {
  return pickle.kind(node) == PickleKind::kDict || pickle.is_object_of(node, "collections", "OrderedDict") ||
         pickle.is_object_of(node, "collections", "defaultdict") || pickle.is_object_of(node, "builtins", "dict");
}

std::vector<PicklePair> mapping_items(const Pickle& pickle, PickleRef node) {
  std::vector<PicklePair> pairs;
  if (!is_mapping(pickle, node)) return pairs;
  if (pickle.kind(node) == PickleKind::kObject) take_constructor_items(pickle, node, pairs);
  const auto set = pickle.pairs(node);
  pairs.insert(pairs.end(), set.begin(), set.end());
  return pairs;
}

std::size_t mapping_size(const Pickle& pickle, PickleRef node) {
  if (!is_mapping(pickle, node)) return 0;
  std::size_t size = pickle.pairs(node).size();
  if (pickle.kind(node) == PickleKind::kObject)
    for (const PickleRef arg : pickle.items(pickle.args(node)))
      size += pickle.pairs(arg).size() + pickle.items(arg).size();
  return size;
}

PickleRef value_of(const Pickle& pickle, std::span<const PicklePair> items, std::string_view key,
                   const std::filesystem::path& path) {
  PickleRef found = kNoNode;
  for (const auto& [name, value] : items) {
    if (pickle.kind(name) != PickleKind::kString || pickle.text(name) != key) continue;
    if (found != kNoNode) throw Error(ErrorKind::kBadInput, fmt::format("contains \"{}\" twice", key)).in(path);
    found = value;
  }
  return found != kNoNode && pickle.kind(found) == PickleKind::kNone ? kNoNode : found;
}

std::string tensor_name(const Pickle& pickle, PickleRef key, const std::filesystem::path& path) {
  if (pickle.kind(key) != PickleKind::kString)
    throw Error(ErrorKind::kBadInput, "names a tensor by " + pickle.describe(key) + ", not by a string").in(path);
  const std::string_view text = pickle.text(key);
  if (text.size() > kMaxTensorNameBytes)
    throw Error(ErrorKind::kBadInput,
                fmt::format("has a name of {} bytes, more than the supported {}", text.size(), kMaxTensorNameBytes))
        .in(path)
        .tensor(std::string(text.substr(0, kShownBytes)) + "…");
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (utf8_length(rest) == 0 || begins_with_control(rest))
      throw Error(ErrorKind::kBadInput, "its name has a control character or is not UTF-8")
          .in(path)
          .tensor(std::string(text));
    at += utf8_length(rest);
  }
  return std::string(text);
}

/// Compares nodes first, so that a long text that names many tensors is not compared with itself repeatedly.
void refuse_twins(const Pickle& pickle, std::vector<PickleRef> keys, std::string_view where,
                  const std::filesystem::path& path) {
  const auto twin = [&](std::string_view name) {
    return Error(ErrorKind::kBadInput, fmt::format("is in {} twice", where)).in(path).tensor(printable(name));
  };
  std::sort(keys.begin(), keys.end());
  const auto same_node = std::adjacent_find(keys.begin(), keys.end());
  if (same_node != keys.end()) throw twin(pickle.text(*same_node));
  std::vector<std::string_view> names;
  for (const PickleRef key : keys) names.push_back(pickle.text(key));
  std::sort(names.begin(), names.end());
  const auto same_name = std::adjacent_find(names.begin(), names.end());
  if (same_name != names.end()) throw twin(*same_name);
}

std::optional<Dims> read_size(const Pickle& pickle, PickleRef node) {
  if (node == kNoNode) return std::nullopt;
  if (pickle.is_object_of(node, "torch", "Size")) {
    const auto args = pickle.items(pickle.args(node));
    if (args.size() != 1) return std::nullopt;
    node = args[0];
  }
  if (pickle.kind(node) != PickleKind::kTuple && pickle.kind(node) != PickleKind::kList) return std::nullopt;
  const auto items = pickle.items(node);
  if (items.size() > kMostDims) return std::nullopt;
  Dims size;
  for (const PickleRef item : items) {
    if (pickle.kind(item) != PickleKind::kInt || pickle.integer(item) < 0) return std::nullopt;
    size.push_back(static_cast<std::uint64_t>(pickle.integer(item)));
  }
  return size;
}

}  // namespace reshard
