#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// Returns the text of a small file for a later run: a first line (type and version of the file), the body, and the
/// SHA-256 of both, which reveals an incomplete write.
std::string sealed(std::string_view first_line, std::string_view body);

/// Returns the first line and the body of a sealed text; std::nullopt if `text` is incomplete or was not sealed.
std::optional<std::string_view> unsealed(std::string_view text);
/// Returns the body; std::nullopt if the first line differs from `first_line`.
std::optional<std::string_view> unsealed(std::string_view first_line, std::string_view text);

}  // namespace reshard
