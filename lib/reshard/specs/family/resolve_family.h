#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json.h"

namespace reshard {

/// How a family with "like" inherits a key of the other family.
enum class Inherit : std::uint8_t {
  kNever,    // not inherited
  kReplace,  // inherited unless the family has its own
  kMerge,    // merged key by key
  kModules,  // changed module by module
};
struct FamilyKey {
  const char* name;
  Inherit inherit;
  bool may_be_null = false;  // null removes the inherited value
};
/// Returns the keys of a description that has modules, except "$schema".
const std::vector<FamilyKey>& family_keys();

/// Returns the resolved description of a family; std::nullopt if its name is unknown.
using FindResolved = std::function<std::optional<OrderedJson>(const std::string& model_type)>;

/// Expands a family with "like" to a complete description. In addition to "like", `derived` may have:
///
///   rename      {"self_attn.o_proj": "self_attn.dense"}: new names for modules, or for parts of names between dots
///   remove      ["gate_proj"]: removes modules whose names have one of these between dots or at an end
///   modules     changes the keys of modules that exist under the same name and "parameter" (null removes a key), and
///               adds the others
///   all other keys   inherited as family_keys() declares
///
/// Returns a description without "like" unchanged.
/// \throws Error kBadInput, naming `file`, for a family that `find` does not know, and for names that do not exist.
OrderedJson resolve_family(const OrderedJson& derived, const FindResolved& find, const JsonFile& file);

/// Returns the resolved description of a built-in family; std::nullopt if its name is unknown.
std::optional<OrderedJson> builtin_description(const std::string& model_type);

/// Formats a description for people, with one module per line.
std::string family_text(const OrderedJson& family);

}  // namespace reshard
