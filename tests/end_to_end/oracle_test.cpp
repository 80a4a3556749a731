// What each rank holds, against the formulae of the reference written with numeric views. layouts_property_test.cpp tries
// random models.

#include "support/oracle.h"

#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

void check_case(const TinyModel& model, const OracleOptions& options) {
  REQUIRE(is_legal(model, options));
  const Input input(model);
  Request request = shard_request(input / "model", input / "out");
  set_target(request.target, options);
  shard(request);
  const auto expected = expected_ranks(model, input.tensors, options);
  const auto ranks = read_ranks(input / "out");
  REQUIRE(ranks.size() == expected.size());
  for (const auto& [folder, tensors] : expected) {
    INFO(folder);
    REQUIRE(ranks.at(folder).size() == tensors.size());
    for (const auto& [name, tensor] : tensors) {
      INFO(name);
      CHECK(ranks.at(folder).at(name).shape == tensor.shape);
      CHECK((ranks.at(folder).at(name) == tensor));
    }
  }
}

TEST_CASE("Every multiplier that works puts the heads where the formulae say") {
  std::size_t cases = 0;
  for (const std::uint64_t kv_heads : {1, 2, 3, 4})
    for (const std::uint64_t group : {1, 2, 4, 6})
      for (const std::uint64_t tp : {2, 3, 4, 6, 8, 12})
        for (std::uint64_t m = 1; m <= tp; ++m) {
          const TinyModel model{
              .intermediate = 48, .layers = 1, .heads = kv_heads * group, .kv_heads = kv_heads, .vocab = 96};
          const OracleOptions options{.tp = tp, .kv_size_multiplier = m};
          if (!is_legal(model, options) || (kv_heads >= tp && kv_heads % tp == 0)) continue;
          ++cases;
          DYNAMIC_SECTION(model.heads << " heads, " << kv_heads << " key/value heads, tp " << tp << ", multiplier "
                                      << m) {
            check_case(model, options);
          }
        }
  CHECK(cases > 20);
}

TEST_CASE("Multi-head attention whose heads the ranks do not divide is refused, since no multiplier helps") {
  const Input input({.intermediate = 48, .heads = 6, .kv_heads = 6});
  REQUIRE_FALSE(is_legal(input.model, {.tp = 4}));
  check_refused([&] { plan_shard(shard_request(input / "model", input / "out", 4)); }, {.kind = ErrorKind::kUsage});
}

TEST_CASE("Every rank holds what the formulae of the reference say") {
  const TinyModel grouped{.heads = 8, .kv_heads = 4}, deep{.layers = 7}, tied{.tied = true};
  const TinyModel qwen2{.model_type = "qwen2", .kv_heads = 4};  // as many key/value heads as query heads
  std::vector<std::pair<TinyModel, OracleOptions>> rows{
      {grouped, {.tp = 1}},
      {grouped, {.tp = 2}},
      {grouped, {.tp = 4}},
      {qwen2, {.tp = 2, .fuse_qkv = true}},
      {qwen2, {.tp = 4, .fuse_qkv = true}},
      {deep, {.tp = 2, .pp = 3}},
      {deep, {.tp = 2, .pp = 2, .vpp = 3}},
      {deep, {.tp = 1, .pp = 1, .vpp = 7}},
      {deep, {.tp = 2, .pp = 2, .vpp = 2, .cuts = {0, 4, 5}}},
      {tied, {.tp = 2, .pp = 2}},
      {tied, {.tp = 2, .pp = 1}},
  };
  for (const std::uint64_t tp : {4, 8})
    for (const char* family : {"llama", "granite"})
      rows.push_back({{.model_type = family, .heads = 16, .attention_bias = true, .mlp_bias = true},
                      {.tp = tp, .fuse_qkv = true}});
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3", "granite"})
    rows.push_back(
        {{.model_type = family, .heads = 8, .head_dim = 6, .inv_freq = family == "llama"}, {.tp = 4, .pp = 2}});
  for (const auto& [model, options] : rows)
    DYNAMIC_SECTION(model.config().dump() << ", tp " << options.tp << ", pp " << options.pp << ", vpp " << options.vpp
                                          << ", cuts " << options.cuts.size()) {
      check_case(model, options);
    }
}

}  // namespace
}  // namespace reshard::test
