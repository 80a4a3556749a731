#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/json_fwd.h"

namespace reshard {

/// The resolved description of the family of a name; nothing for a name that is not known.
using FindResolved = std::function<std::optional<OrderedJson>(const std::string& model_type)>;

/// A family that says "like" as the whole description it stands for. `derived` has beside "like", each of them optional:
///
///   rename      {"self_attn.o_proj": "self_attn.dense"}: names, or parts of names between dots, that are other ones
///   remove      ["gate_proj"]: modules whose name ends with one of these, or has it between dots
///   modules     one that is there already, by its name and "parameter", gets the keys that are given here (null takes
///               one away); others are new
///   defaults, define, attention    are added key by key; with "attention": null there is none
///   fused, whole, layers, num_layers    take the place of the other family's
///   class_defaults, nxd_inference    are never taken over
///
/// A description without "like" is returned as it is.
/// \throws Error kBadInput, naming `path`, for a family that `find` does not know, and for names that are not there.
OrderedJson resolve_family(const OrderedJson& derived, const FindResolved& find, const std::filesystem::path& path);

/// The built-in families, resolved.
std::optional<OrderedJson> builtin_description(const std::string& model_type);

/// A description as text, as people write it: one module a line.
std::string family_text(const OrderedJson& family);

}  // namespace reshard
