#include "reshard/layouts/optimizer/optimizer_dcp_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::string_view kBegin = "base_state.";

/// A rank in "|tp-0001"; what stands behind it stays in `rest`.
std::optional<std::uint32_t> take_rank(std::string_view& rest, std::string_view mark) {
  constexpr std::size_t kDigits = 4;  // at least
  if (!rest.starts_with(mark)) return std::nullopt;
  const std::string_view number = rest.substr(mark.size(), rest.find('|', 1) - mark.size());
  const auto rank = parse_unsigned(number, UINT32_MAX - 1);
  if (!rank || number != fmt::format("{:0{}}", *rank, kDigits)) return std::nullopt;
  rest.remove_prefix(mark.size() + number.size());
  return static_cast<std::uint32_t>(*rank);
}

}  // namespace

bool is_dcp_state_name(std::string_view name) {
  return name.starts_with(kBegin);
}

std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name) {
  if (!is_dcp_state_name(name)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  std::string_view ranks = name.substr(std::min(name.find('|'), name.size()));
  name.remove_suffix(ranks.size());
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  DcpStateKey key{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1)), {}, {}};
  key.pp_rank = take_rank(ranks, "|pp-");
  key.tp_rank = take_rank(ranks, "|tp-");
  return ranks.empty() ? std::optional(std::move(key)) : std::nullopt;
}

}  // namespace reshard
