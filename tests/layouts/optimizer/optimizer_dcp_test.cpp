#include "reshard/layouts/optimizer/optimizer_dcp.h"

#include <string>

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("The name of a state that NxD saves through dcp says its parameter and ranks, where they are there") {
  const auto key = parse_dcp_state_key("base_state.model.norm.weight.exp_avg|pp-0001|tp-0012");
  REQUIRE(key);
  CHECK(key->parameter == "model.norm.weight");
  CHECK(key->state == "exp_avg");
  CHECK(key->pp_rank == 1u);
  CHECK(key->tp_rank == 12u);
  const auto only_tp = parse_dcp_state_key("base_state.w.step|tp-12345");
  REQUIRE(only_tp);
  CHECK_FALSE(only_tp->pp_rank);
  CHECK(only_tp->tp_rank == 12345u);
  const auto bare = parse_dcp_state_key("base_state.w.step");
  REQUIRE(bare);
  CHECK(bare->parameter == "w");
  CHECK_FALSE(bare->pp_rank);
  CHECK_FALSE(bare->tp_rank);
}

TEST_CASE("Other names are no state's") {
  for (const char* name :
       {"", "base_state", "base_state.", "base_state.w", "base_state.w.", "base_state..exp_avg", "state.w.exp_avg",
        "base_state.w.exp_avg|", "base_state.w.exp_avg|tp-", "base_state.w.exp_avg|tp-1",
        "base_state.w.exp_avg|tp-00001", "base_state.w.exp_avg|tp-4294967295", "base_state.w.exp_avg|tp--001",
        "base_state.w.exp_avg|tp-0001|pp-0000", "base_state.w.exp_avg|tp-0001|tp-0002", "base_state.w.exp_avg|tp-0001x",
        "base_state.w.exp_avg|ep-0001"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_dcp_state_key(name));
  }
}

}  // namespace
}  // namespace reshard::test
