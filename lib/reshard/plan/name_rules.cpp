#include "reshard/plan/name_rules.h"

#include <fmt/format.h>

#include <regex>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

// std::regex recurses over the text it searches; a name longer than any real one would overflow the stack.
constexpr std::size_t kMaxMatchedName = 4096;

std::regex parse(const std::string& option, const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: \"{}\" is not a regular expression: {}", option, printable(text), error.what()));
  }
}

}  // namespace

/// Kept from the header: <regex> is slow to compile.
struct NamePattern::Compiled {
  std::regex regex;
};

NamePattern::NamePattern(const std::string& option, const std::string& text)
    : text_(text), compiled_(std::make_shared<const Compiled>(Compiled{parse(option, text)})) {}

bool NamePattern::matches(const std::string& name) const {
  return name.size() <= kMaxMatchedName && std::regex_search(name, compiled_->regex);
}

std::string NamePattern::replace(const std::string& name, const std::string& replacement) const {
  return name.size() <= kMaxMatchedName ? std::regex_replace(name, compiled_->regex, replacement) : name;
}

std::pair<NamePattern, std::string> parse_rename(const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not REGEX=REPLACEMENT", option, printable(text)))
        .hint("such as '^transformer\\.=model.'");
  return {NamePattern(option, text.substr(0, equals)), text.substr(equals + 1)};
}

}  // namespace reshard
