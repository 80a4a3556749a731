#include "color.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

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

const char* code_of(Style style) {
  switch (style) {
    case Style::kBold: return "1";
    case Style::kRed: return "1;31";
    case Style::kGreen: return "1;32";
    case Style::kYellow: return "1;33";
  }
  return "";
}

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
  return has_color(fd) && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code_of(style), text) : text;
}

}  // namespace reshard::cli
