#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "reshard/layouts/names/known_names.h"

namespace reshard {

/// Name parts that torch.compile, FSDP1, activation checkpointing and fairscale add.
inline constexpr std::string_view kWrappers[] = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                                 "_fpw_module"};
/// Name part that DistributedDataParallel adds. It is also a common word, so it is removed only if more names are then
/// known.
inline constexpr std::string_view kModuleWrapper = "module";

/// Name parts that wrap a whole model: attributes of trainers and of PEFT.
inline constexpr std::string_view kOuterWords[] = {
    "model", "module", "state_dict", "app", "model_state_dict", "policy", "actor", "base_model", "_forward_module"};

inline bool is_wrapper(std::string_view part) {
  return is_one_of(part, kWrappers);
}

inline bool is_outer_word(std::string_view word) {
  return is_one_of(word, kOuterWords);
}

/// Removes the dot-separated parts of `name` for which `is_left` returns true.
template <typename IsLeft>
std::string without_parts(std::string_view name, const IsLeft& is_left) {
  std::string rest;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (!is_left(part)) rest += (rest.empty() ? "" : ".") + std::string(part);
    if (dot == name.npos) return rest;
    name.remove_prefix(dot + 1);
  }
}

/// Removes kWrappers from `name`, and adds them to `wrappers`.
inline std::string without_wrappers(std::string_view name, std::set<std::string>& wrappers) {
  return without_parts(name, [&](std::string_view part) {
    if (is_wrapper(part)) wrappers.emplace(part);
    return is_wrapper(part);
  });
}

/// Removes kModuleWrapper from `name`, unless nothing else is left.
inline std::string without_module_parts(const std::string& name) {
  std::string rest = without_parts(name, [](std::string_view part) { return part == kModuleWrapper; });
  return rest.empty() ? name : rest;
}

}  // namespace reshard
