#include "color.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>

#include "table.h"

namespace reshard::cli {
namespace {

enum class ColorUse : unsigned char { kAuto, kAlways, kNever };

ColorUse color_use = ColorUse::kAuto;  // set before threads start

bool is_set(const char* value) {
  return value != nullptr && *value != '\0';
}

bool has_color(int fd) {
  if (color_use != ColorUse::kAuto) return color_use == ColorUse::kAlways;
  return is_terminal(fd) && !is_set(std::getenv("NO_COLOR")) && is_set(std::getenv("TERM")) &&
         std::string_view(std::getenv("TERM")) != "dumb";
}

/// Escape codes by Style, and the end of all.
constexpr std::string_view kCodes[] = {"\x1b[1m", "\x1b[1;31m", "\x1b[1;32m", "\x1b[1;33m", "\x1b[0m"};

}  // namespace

void set_color(std::string_view use) {
  color_use = use == "always" ? ColorUse::kAlways : use == "never" ? ColorUse::kNever : ColorUse::kAuto;
}

void set_color(const std::vector<std::string>& arguments) {
  constexpr std::string_view kOption = "--color";
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == kOption && i + 1 < arguments.size()) set_color(arguments[++i]);
    if (argument.starts_with("--color=")) set_color(argument.substr(kOption.size() + 1));
  }
}

std::string styled(const std::string& text, Style style, int fd) {
  if (!has_color(fd) || text.empty()) return text;
  return fmt::format("{}{}{}", kCodes[static_cast<std::size_t>(style)], text, *std::rbegin(kCodes));
}

std::size_t style_bytes(std::string_view text, int fd) {
  for (const std::string_view code : kCodes)
    if (text.starts_with(code) && has_color(fd)) return code.size();
  return 0;
}

}  // namespace reshard::cli
