#include "reshard/plan/name_rules.h"

#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

Pattern parse(const std::string& option, const std::string& text) {
  try {
    return Pattern(text);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, option + ": " + error.message()).hint(error.hint());
  }
}

}  // namespace

NamePattern::NamePattern(const std::string& option, const std::string& text)
    : text_(text), pattern_(parse(option, text)) {}

std::pair<NamePattern, std::string> parse_rename(const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not REGEX=REPLACEMENT", option, printable(text)))
        .hint("such as '^transformer\\.=model.'");
  return {NamePattern(option, text.substr(0, equals)), text.substr(equals + 1)};
}

}  // namespace reshard
