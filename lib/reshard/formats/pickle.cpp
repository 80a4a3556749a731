#include "reshard/formats/pickle.h"

#include "reshard/base/strings.h"

namespace reshard {

PickleGlobal Pickle::global(PickleRef node) const {
  if (kind(node) != PickleKind::kGlobal) return {};
  return globals_[static_cast<std::size_t>(nodes_[node].integer)];
}

std::span<const PickleRef> Pickle::items(PickleRef node) const {
  const Node& it = nodes_[node];
  if (!has_parts(it.kind) || it.parts.items == UINT32_MAX) return {};
  if (it.kind == PickleKind::kTuple) return std::span(tuple_items_).subspan(it.parts.items, it.parts.pairs);
  return lists_[it.parts.items];
}

std::span<const PicklePair> Pickle::pairs(PickleRef node) const {
  const Node& it = nodes_[node];
  if (!has_parts(it.kind) || it.parts.pairs == UINT32_MAX || it.kind == PickleKind::kTuple) return {};
  return dicts_[it.parts.pairs];
}

bool Pickle::is_global(PickleRef node, std::string_view module, std::string_view name) const {
  const PickleGlobal it = global(node);
  return kind(node) == PickleKind::kGlobal && it.module == module && it.name == name;
}

bool Pickle::is_object_of(PickleRef node, std::string_view module, std::string_view name) const {
  return kind(node) == PickleKind::kObject && is_global(callee(node), module, name);
}

std::string Pickle::class_name(PickleRef node) const {
  if (kind(node) == PickleKind::kObject) node = callee(node);
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
