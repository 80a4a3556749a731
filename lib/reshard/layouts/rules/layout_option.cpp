#include "reshard/layouts/rules/layout_option.h"

#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;  // more than any size of a dim that is padded

Error value_error(const LayoutOption& option, const std::string& prefix, const std::string& value,
                  const std::string& expected) {
  return Error(ErrorKind::kUsage, fmt::format("`{}{}`: \"{}\" is {}", prefix, option.name, printable(value), expected));
}

}  // namespace

std::vector<std::string> OptionValues::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) names.push_back(name);
  return names;
}

std::optional<std::uint64_t> OptionValues::number(const LayoutOption& option, const std::string& prefix) const {
  const auto found = values_.find(option.name);
  const std::string text = found != values_.end() ? found->second : option.default_value;
  if (text.empty() && found == values_.end()) return std::nullopt;
  if (option.type == LayoutOption::Type::kSize) {
    const auto bytes = parse_size(text);
    if (bytes) return bytes;
    throw value_error(option, prefix, text, "not a size")
        .hint("write a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)");
  }
  const bool is_rank = option.type == LayoutOption::Type::kRank;
  const std::uint64_t max = is_rank                                      ? kMaxParallelDegree - 1
                            : option.type == LayoutOption::Type::kDegree ? kMaxParallelDegree
                                                                         : kMaxCount;
  const auto value = parse_unsigned(text, max);
  if (value && (is_rank || *value != 0)) return value;
  throw value_error(option, prefix, text,
                    is_rank ? "not a rank number" : fmt::format("not a whole number from 1 to {}", max));
}

std::string OptionValues::text(const LayoutOption& option) const {
  const auto found = values_.find(option.name);
  return found == values_.end() ? option.default_value : found->second;
}

std::string OptionValues::choice(const LayoutOption& option, const std::string& prefix) const {
  const auto found = values_.find(option.name);
  if (found == values_.end()) return option.choices.front();
  for (const char* choice : option.choices)
    if (found->second == choice) return choice;
  throw value_error(option, prefix, found->second, fmt::format("not one of {}", fmt::join(option.choices, ", ")));
}

}  // namespace reshard
