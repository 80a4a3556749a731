#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace reshard {

/// The longest name of a tensor that is written in any format, and that is read from a pickle. No path in a model is
/// longer; one text of a pickle may be the name of millions of tensors, and each keeps its own.
inline constexpr std::size_t kMaxTensorNameBytes = 4096;

/// Of a tensor that is to be written.
/// \throws Error kUnsupported, naming the tensor and the limit.
void validate_name_length(const std::string& name);

/// Whether it is UTF-8 without control characters, as names in pickles must be: torch refuses others, and so do readers
/// here.
bool is_plain_text(std::string_view name);

}  // namespace reshard
