#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace reshard {

/// Longest tensor name that is written in any format or read from a pickle. No path in a model is longer. In a pickle,
/// one text may be the name of millions of tensors, and each keeps a copy.
inline constexpr std::size_t kMaxTensorNameBytes = 4096;

/// Validates the name of a tensor to be written.
/// \throws Error kUnsupported, naming the tensor and the limit.
void validate_name_length(const std::string& name);

/// Whether `name` is UTF-8 without control characters. Names in pickles must be: torch and the readers here reject
/// others.
bool is_plain_text(std::string_view name);

}  // namespace reshard
