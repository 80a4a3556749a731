#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// A small file that a later run reads: a first line, which says what it is and of which version, a body, and the
/// SHA-256 of both, so that one that was torn is told from one that is whole.
std::string sealed(std::string_view first_line, std::string_view body);

/// All but the SHA-256 of what `sealed` made, whatever its first line; nothing of what is torn, or something else.
std::optional<std::string_view> unsealed(std::string_view text);
/// The body; nothing where the first line is another one.
std::optional<std::string_view> unsealed(std::string_view first_line, std::string_view text);

}  // namespace reshard
