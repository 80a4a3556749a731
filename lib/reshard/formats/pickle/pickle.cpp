#include "reshard/formats/pickle/pickle.h"

#include <algorithm>

#include "reshard/base/strings.h"

namespace reshard {

PickleGlobal Pickle::global(PickleRef node) const {
  if (kind(node) != PickleKind::kGlobal) return {};
  return globals_[static_cast<std::size_t>(nodes_[node].integer)];
}

std::span<const PickleRef> Pickle::items(PickleRef node) const {
  const Node& it = nodes_[node];
  std::uint32_t list = UINT32_MAX;
  if (it.kind == PickleKind::kTuple) return std::span(tuple_items_).subspan(it.parts.first, it.parts.second);
  if (it.kind == PickleKind::kList || it.kind == PickleKind::kSet) list = it.parts.first;
  if (it.is_filled) list = filled_[it.number].items;
  return list == UINT32_MAX ? std::span<const PickleRef>() : lists_[list];
}

std::span<const PicklePair> Pickle::pairs(PickleRef node) const {
  const Node& it = nodes_[node];
  std::uint32_t dict = UINT32_MAX;
  if (it.kind == PickleKind::kDict && it.parts.second != UINT32_MAX)
    return std::span(dict_pairs_).subspan(it.parts.first, it.parts.second);
  if (it.kind == PickleKind::kDict) dict = it.parts.first;
  if (it.is_filled) dict = filled_[it.number].pairs;
  return dict == UINT32_MAX ? std::span<const PicklePair>() : dicts_[dict];
}

void Pickle::take_texts() {
  std::size_t size = 0;
  const auto for_each = [&](const auto& take) {
    for (Node& node : nodes_)
      if (has_text(node.kind)) node.text = take({node.text, node.number}).data();
    for (PickleGlobal& global : globals_) global = {take(global.module), take(global.name)};
  };
  for_each([&](std::string_view text) {
    size += text.size();
    return text;
  });
  auto texts = std::make_unique<char[]>(size);
  char* end = texts.get();
  for_each([&](std::string_view text) {
    char* const begin = end;
    end = std::copy(text.begin(), text.end(), begin);
    return std::string_view(begin, text.size());
  });
  own_texts_ = std::move(texts);
  decoded_.clear();
}

bool Pickle::is_global(PickleRef node, std::string_view module, std::string_view name) const {
  const PickleGlobal it = global(node);
  return kind(node) == PickleKind::kGlobal && it.module == module && it.name == name;
}

bool Pickle::is_object_of(PickleRef node, std::string_view module, std::string_view name) const {
  return kind(node) == PickleKind::kObject && is_global(callee(node), module, name);
}

std::string Pickle::class_name(PickleRef node) const {
  if (kind(node) == PickleKind::kObject && !is_object_of(node, "builtins", "getattr")) node = callee(node);
  if (kind(node) == PickleKind::kObject) {  // a nested class, read by getattr
    const auto parts = items(args(node));
    return class_name(parts[0]) + "." + std::string(text(parts[1]));
  }
  if (kind(node) != PickleKind::kGlobal) return {};
  const PickleGlobal it = global(node);
  return std::string(it.module) + "." + std::string(it.name);
}

std::string Pickle::describe(PickleRef node) const {
  switch (kind(node)) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return "a bool";
    case PickleKind::kInt:
    case PickleKind::kBigInt: return "an int";
    case PickleKind::kFloat: return "a float";
    case PickleKind::kString: return "a string";
    case PickleKind::kBytes: return "bytes";
    case PickleKind::kTuple: return "a tuple";
    case PickleKind::kList: return "a list";
    case PickleKind::kDict: return "a dict";
    case PickleKind::kSet: return "a set";
    case PickleKind::kGlobal: return "the class " + printable(class_name(node));
    case PickleKind::kObject: return "an object of " + printable(class_name(node));
    case PickleKind::kPersistentId: return "a storage";
  }
  return {};
}

}  // namespace reshard
