#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace reshard {

/// Role of an entry in the training run that saved it.
enum class TensorRole : std::uint8_t {
  kParameter,  // a parameter or buffer of the model
  kState,      // training state: a moment of the optimizer, a counter, or another tensor that is not in the model
  kObject,     // not a tensor: an object as torch.save wrote it, copied without being parsed
  kPart,       // follows from a parameter, or parameters follow from it; a program has it in its place
};

struct TensorRoleRow {
  TensorRole role;
  const char* name;  // in a manifest
};
inline constexpr TensorRoleRow kTensorRoles[] = {{TensorRole::kParameter, "parameter"},
                                                 {TensorRole::kState, "state"},
                                                 {TensorRole::kObject, "object"},
                                                 {TensorRole::kPart, "part"}};

inline const char* name(TensorRole role) {
  return kTensorRoles[static_cast<std::size_t>(role)].name;
}

inline std::optional<TensorRole> tensor_role_from_name(std::string_view name) {
  for (const TensorRoleRow& row : kTensorRoles)
    if (name == row.name) return row.role;
  return std::nullopt;
}

}  // namespace reshard
