#include "reshard/layouts/ranks/rank_folder.h"

#include "reshard/formats/torch/xser.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {

namespace fs = std::filesystem;

namespace {

constexpr NumberedName kRankName("<[dp_rank_{dp:2}]|[ep_rank_{ep:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>",
                                 kMaxParallelDegree - 1);

}  // namespace

NameNumbers numbers_of(RankId rank) {
  NameNumbers numbers{{"tp", rank.tp_rank}, {"pp", rank.pp_rank}, {"dp", rank.dp_rank}};
  if (rank.has_ep) numbers.emplace("ep", rank.ep_rank);
  return numbers;
}

RankId rank_of(const NameNumbers& numbers) {
  const auto number = [&](std::string_view key) {
    const auto found = numbers.find(key);
    return found == numbers.end() ? 0 : static_cast<std::uint32_t>(found->second);
  };
  return {number("tp"), number("pp"), number("dp"), number("ep"), numbers.count("ep") > 0};
}

std::string rank_name(RankId rank, bool dp) {
  NameNumbers numbers = numbers_of(rank);
  if (!dp) numbers.erase("dp");
  return kRankName.print(numbers);
}

std::optional<RankId> rank_of_name(std::string_view name) {
  const auto numbers = kRankName.parse(name);
  return numbers ? std::optional(rank_of(*numbers)) : std::nullopt;
}

Format torch_format_of(Files& files, const fs::path& path) {
  return is_xser(files, path) ? Format::kXser : Format::kPytorch;
}

}  // namespace reshard
