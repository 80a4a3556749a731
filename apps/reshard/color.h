#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard::cli {

enum class Style : unsigned char { kBold, kRed, kGreen, kYellow };

/// Sets whether output has colours: "auto" (on a terminal, unless NO_COLOR is set or TERM is dumb), "always" or "never"; other text is "auto".
void set_color(std::string_view use);
/// Applies the last --color in a command line, which also holds for errors in it.
void set_color(const std::vector<std::string>& arguments);

/// Returns `text` in a style if `fd`, to which it will be written, has colours. Does not escape it.
std::string styled(const std::string& text, Style style, int fd);
/// Returns the length of the escape code of a style, or of its end, with which `text` begins; 0 if it begins with none or
/// `fd` has no colours.
std::size_t style_bytes(std::string_view text, int fd);

}  // namespace reshard::cli
