#include "reshard/layouts/optimizer/optimizer_dcp_names.h"

#include <algorithm>

#include "reshard/base/numbered_name.h"

namespace reshard {
namespace {

constexpr std::string_view kBegin = "base_state.";

constexpr NumberedName kStateRanks("[|pp-{pp:4}][|tp-{tp:4}]", UINT32_MAX - 1);

}  // namespace

bool is_dcp_state_name(std::string_view name) {
  return name.starts_with(kBegin);
}

std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name) {
  if (!is_dcp_state_name(name)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  const std::string_view text_of_ranks = name.substr(std::min(name.find('|'), name.size()));
  const auto ranks = kStateRanks.parse_printed(text_of_ranks);
  if (!ranks) return std::nullopt;
  name.remove_suffix(text_of_ranks.size());
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  const auto number = [&](std::string_view key) -> std::optional<std::uint32_t> {
    const auto found = ranks->find(key);
    return found == ranks->end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found->second));
  };
  return DcpStateKey{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1)), number("pp"), number("tp")};
}

}  // namespace reshard
