#include "reshard/layouts/ranks/rank_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/strings.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {

namespace fs = std::filesystem;

std::string rank_name(RankId rank, bool dp) {
  return fmt::format("{}{}tp_rank_{:02}_pp_rank_{:02}", dp ? fmt::format("dp_rank_{:02}_", rank.dp_rank) : "",
                     rank.has_ep ? fmt::format("ep_rank_{:02}_", rank.ep_rank) : "", rank.tp_rank, rank.pp_rank);
}

std::optional<RankId> rank_of_name(std::string_view name) {
  constexpr std::string_view kMiddle = "_rank_";
  RankId rank;
  std::map<std::string_view, std::uint32_t*> open{
      {"tp", &rank.tp_rank}, {"pp", &rank.pp_rank}, {"dp", &rank.dp_rank}, {"ep", &rank.ep_rank}};
  while (true) {
    const auto found = open.find(name.substr(0, 2));
    if (found == open.end() || name.substr(2, kMiddle.size()) != kMiddle) return std::nullopt;
    name.remove_prefix(2 + kMiddle.size());
    const std::size_t digits = std::min(name.find('_'), name.size());
    const auto number = parse_unsigned(name.substr(0, digits), kMaxParallelDegree - 1);
    if (!number) return std::nullopt;
    *found->second = static_cast<std::uint32_t>(*number);
    open.erase(found);
    if (digits == name.size()) break;
    name.remove_prefix(digits + 1);
  }
  if (open.count("tp") || open.count("pp")) return std::nullopt;
  rank.has_ep = !open.count("ep");
  return rank;
}

Format torch_format_of(Files& files, const fs::path& path) {
  return is_xser(files, path) ? Format::kXser : Format::kPytorch;
}

}  // namespace reshard
