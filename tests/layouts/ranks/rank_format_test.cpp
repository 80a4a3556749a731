#include "reshard/layouts/ranks/rank_format.h"

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/layouts.h"

namespace reshard::test {
namespace {

TEST_CASE("Layouts read the rank that the names of their files say") {
  std::size_t layouts_with_ranks = 0;
  for (const Layout* one : layouts()) {
    const RankFormat* const ranks = one->ranks();
    if (ranks == nullptr) continue;
    ++layouts_with_ranks;
    for (const std::uint32_t tp_rank : {0u, 9u, 10u, 100u, 4095u})
      for (const std::uint32_t pp_rank : {0u, 12u}) {
        if (pp_rank > 0 && !one->traits().has_stages()) continue;
        const RankId rank{tp_rank, pp_rank};
        const std::string name = rank_path(*one, Format::kXser, rank, 7).filename().string();
        CAPTURE(one->traits().name, name);
        const auto numbers = ranks->numbers(name);
        REQUIRE(numbers);
        CHECK(rank_of(*numbers) == rank);
        CHECK((numbers->count("part") == 0 || numbers->at("part") == 7));
        CHECK(name.starts_with(ranks->name_of(rank)));
      }
  }
  CHECK(layouts_with_ranks >= 6);
}

TEST_CASE("Layouts read ranks' names of any width and order, and no others") {
  struct Row {
    const char* layout;
    std::vector<const char*> read, refused;
  };
  const Row rows[] = {
      {"ranks",
       {"tp_rank_0_pp_rank_0", "pp_rank_01_dp_rank_3_tp_rank_007", "ep_rank_01_tp_rank_00_pp_rank_00"},
       {"tp_rank_00_pp_rank_00.pt", "tp_rank_00", "tp_rank_4096_pp_rank_00"}},
      {"nxd",
       {"tp_rank_0_pp_rank_0.pt", "dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt", "pp_rank_1_tp_rank_2_dp_rank_3.pt"},
       {"tp_rank_00_pp_rank_00", "dp_rank_00_tp_rank_00.pt", "dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors", ".pt"}},
      {"nxdi",
       {"tp007_sharded_checkpoint.safetensors"},
       {"tp_sharded_checkpoint.safetensors", "tp4096_sharded_checkpoint.safetensors", "tp0_sharded_checkpoint.bin"}},
      {"vllm",
       {"model-rank-00-part-4294967294.safetensors"},
       {"model-rank-0-part-4294967295.safetensors", "model-rank-4096-part-0.safetensors", "model-rank-0.safetensors",
        "model-rank-0-part-.safetensors"}}};
  for (const Row& row : rows) {
    const RankFormat& ranks = *layout(row.layout)->ranks();
    CAPTURE(row.layout);
    for (const char* name : row.read) CHECK(ranks.numbers(name).has_value());
    for (const char* name : row.refused) CHECK_FALSE(ranks.numbers(name).has_value());
  }
}

}  // namespace
}  // namespace reshard::test
