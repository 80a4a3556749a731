#include "reshard/layouts/states/optimizer_stage.h"

#include <functional>
#include <string>
#include <vector>

#include "support/refusals.h"

namespace reshard::test {
namespace {

StateShard shard(std::uint32_t rank, std::uint32_t entry, const std::string& state, DType dtype = DType::kF32) {
  return {{state, dtype, {2}}, entry, rank};
}

/// Two parameters in one group on two ranks: the first has a moment and master weights, the second a moment alone.
OptimizerStage two_ranks() {
  OptimizerStage stage;
  stage.path = "optim/first.pt";
  stage.groups = {{{{"lr", {0.5}}}, 2}};
  stage.first_expert_group = 1;
  stage.entries = {{{{"step", {std::int64_t{3}}}}, Dims{4}, {}}, {{}, Dims{4}, {}}};
  for (const std::uint32_t rank : {1, 0})
    for (const std::uint32_t entry : {1, 0}) {
      stage.shards.push_back(shard(rank, entry, "exp_avg"));
      if (entry == 0) stage.shards.push_back(shard(rank, entry, kMasterState));
    }
  stage.sort_shards();
  return stage;
}

/// The first rank's part of `two_ranks`, as another rank's file has it.
OptimizerStage own_rank() {
  OptimizerStage own = two_ranks();
  own.path = "optim/own.pt";
  std::erase_if(own.shards, [](const StateShard& one) { return one.rank > 0; });
  return own;
}

TEST_CASE("Shards are found by rank in the order of parameters, and so are parameters without master weights") {
  OptimizerStage stage = two_ranks();
  for (const std::uint32_t rank : {0, 1}) {
    const auto shards = stage.of_rank(rank);
    REQUIRE(shards.size() == 3);
    CHECK((shards[0].state() == "exp_avg" && shards[1].is_master() && shards[2].entry == 1));
  }
  CHECK(stage.of_rank(2).empty());
  CHECK(stage.first_without_master() == 1u);
  stage.shards.erase(stage.shards.begin() + 2);  // the moment of the second parameter, which then has no state
  CHECK_FALSE(stage.first_without_master());
  stage.entries[1].name = "norm.weight";
  CHECK((stage.name_of(0) == "id 0" && stage.name_of(1) == "norm.weight"));
}

TEST_CASE("Ranks of one optimizer agree, and what differs is named with both files") {
  const OptimizerStage first = two_ranks();
  CHECK_NOTHROW(validate_agreement(own_rank(), first, true));
  const auto refused = [&](const std::string& says, const std::function<void(OptimizerStage&)>& change,
                           bool same_stage = true) {
    OptimizerStage own = own_rank();
    change(own);
    check_refused([&] { validate_agreement(own, first, same_stage); },
                  {.path = "optim/own.pt", .says = says, .hint = "the files come from different checkpoints"});
  };
  refused(
      "id 0 has F32 exp_avg, step = 4, F32 master weights, but F32 exp_avg, step = 3, F32 master weights in first.pt",
      [](OptimizerStage& own) { own.entries[0].numbers[0].second = {std::int64_t{4}}; });
  refused("id 1 has nothing, but F32 exp_avg in", [](OptimizerStage& own) { own.shards.pop_back(); });
  refused("id 1 has BF16 exp_avg, but F32", [](OptimizerStage& own) { own.shards[2].tensor.dtype = DType::kBF16; });
  refused("id 1 has F32 exp_avg, F32 norm, but F32 exp_avg in",
          [](OptimizerStage& own) { own.shards.push_back(shard(0, 1, "norm")); });
  refused("id 1 has the shape [5], but the shape [4] in", [](OptimizerStage& own) { own.entries[1].shape = Dims{5}; });
  refused("its parameter group 0 has 1 parameters, unlike", [](OptimizerStage& own) { own.groups[0].count = 1; });
  refused(
      "lr of its parameter group 0 is 0.25, but 0.5 in",
      [](OptimizerStage& own) { own.groups[0].values[0].second = {0.25}; }, false);
  refused(
      "has no states of ZeRO-1, unlike first.pt", [](OptimizerStage& own) { own.form = OptimizerStage::Form::kWhole; },
      false);
  OptimizerStage other_stage = own_rank();
  other_stage.entries.pop_back();
  other_stage.groups[0].count = 1;
  CHECK_NOTHROW(validate_agreement(other_stage, first, false));
}

}  // namespace
}  // namespace reshard::test
