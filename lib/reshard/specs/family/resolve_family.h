#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json.h"

namespace reshard {

/// What a family that says "like" does with a key.
enum class Inherit : std::uint8_t {
  kNever,    // it has its own, or none
  kReplace,  // its own takes the place of the other family's
  kMerge,    // is added key by key
  kModules,  // is changed module by module
};
struct FamilyKey {
  const char* name;
  Inherit inherit;
  bool may_be_null = false;  // null takes the other family's away
};
/// The keys of a description that has modules, beside "$schema".
const std::vector<FamilyKey>& family_keys();

/// The resolved description of the family of a name; nothing for a name that is not known.
using FindResolved = std::function<std::optional<OrderedJson>(const std::string& model_type)>;

/// A family that says "like" as the whole description it stands for. `derived` has beside "like", each of them optional:
///
///   rename      {"self_attn.o_proj": "self_attn.dense"}: names, or parts of names between dots, that are other ones
///   remove      ["gate_proj"]: modules whose name ends with one of these, or has it between dots
///   modules     one that is there already, by its name and "parameter", gets the keys that are given here (null takes
///               one away); others are new
///   all other keys   as family_keys() says
///
/// A description without "like" is returned as it is.
/// \throws Error kBadInput, naming `file`, for a family that `find` does not know, and for names that are not there.
OrderedJson resolve_family(const OrderedJson& derived, const FindResolved& find, const JsonFile& file);

/// The built-in families, resolved.
std::optional<OrderedJson> builtin_description(const std::string& model_type);

/// A description as text, as people write it: one module a line.
std::string family_text(const OrderedJson& family);

}  // namespace reshard
