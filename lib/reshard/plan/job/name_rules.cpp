#include "reshard/plan/job/name_rules.h"

#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"

namespace reshard {
namespace {

Pattern parse(const std::string& parameter, const std::string& text) {
  try {
    return Pattern(text);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, "`" + parameter + "`: " + error.message()).hint(error.hint());
  }
}

}  // namespace

NamePattern::NamePattern(const std::string& parameter, const std::string& text)
    : text_(text), pattern_(parse(parameter, text)) {}

std::string NamePattern::replace(const std::string& name, const std::string& replacement) const {
  std::string replaced = pattern_.replace_all(name, replacement);
  if (replaced.size() > kMaxTensorNameBytes)
    throw Error(ErrorKind::kUsage,
                fmt::format("`rename` {}={} gives it a name of {} bytes, and at most {} are allowed", printable(text_),
                            printable(replacement), replaced.size(), kMaxTensorNameBytes))
        .tensor(name);
  return replaced;
}

std::string renamed(const NameRules& rules, std::string name) {
  for (const auto& [pattern, replacement] : rules.renames)
    if (pattern.matches(name)) name = pattern.replace(name, replacement);
  return name;
}

std::pair<NamePattern, std::string> parse_rename(const std::string& parameter, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(ErrorKind::kUsage, fmt::format("`{}`: \"{}\" is not REGEX=REPLACEMENT", parameter, printable(text)))
        .hint("such as '^transformer\\.=model.'");
  return {NamePattern(parameter, text.substr(0, equals)), text.substr(equals + 1)};
}

}  // namespace reshard
