// What each rank holds, against the formulae of the reference written with numeric views.

#include "support/oracle.h"

#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

struct Case {
  TinyModel model;
  OracleOptions options;
};

ShardRequest request_of(const Case& c, const TempDir& temp) {
  ShardRequest request = shard_request(temp / "model", temp / "out", static_cast<std::uint32_t>(c.options.tp),
                                       static_cast<std::uint32_t>(c.options.pp));
  request.target.vpp = static_cast<std::uint32_t>(c.options.vpp);
  request.target.options.set_flag("fuse-qkv", c.options.fuse_qkv);
  if (c.options.kv_size_multiplier)
    request.target.options.set_number("kv-size-multiplier", c.options.kv_size_multiplier);
  for (const std::uint64_t cut : c.options.cuts)
    request.target.pipeline_cuts.push_back("model.layers." + std::to_string(cut));
  return request;
}

void check_case(const Case& c) {
  INFO("tp " << c.options.tp << " pp " << c.options.pp << " vpp " << c.options.vpp << " heads " << c.model.heads
             << " kv " << c.model.kv_heads << " m " << c.options.kv_size_multiplier << " fuse " << c.options.fuse_qkv
             << " " << c.model.model_type);
  REQUIRE(is_legal(c.model, c.options));
  const TempDir temp;
  Random random(17);
  const TensorMap originals = random_tensors(c.model, random);
  write_model(temp / "model", c.model, originals);
  shard(request_of(c, temp));
  const auto expected = expected_ranks(c.model, originals, c.options);
  const auto ranks = read_ranks(temp / "out");
  REQUIRE(ranks.size() == expected.size());
  for (const auto& [folder, tensors] : expected) {
    INFO(folder);
    REQUIRE(ranks.count(folder) == 1);
    REQUIRE(ranks.at(folder).size() == tensors.size());
    for (const auto& [name, tensor] : tensors) {
      INFO(name);
      REQUIRE(ranks.at(folder).count(name) == 1);
      CHECK(ranks.at(folder).at(name).shape == tensor.shape);
      CHECK((ranks.at(folder).at(name) == tensor));
    }
  }
}

TinyModel with_heads(std::uint64_t heads, std::uint64_t kv_heads) {
  TinyModel model;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.intermediate = 48;
  model.vocab = 96;
  return model;
}

TEST_CASE("Separate projections are split as column and row layers say") {
  for (const std::uint64_t tp : {1, 2, 4}) {
    DYNAMIC_SECTION("tp " << tp) {
      check_case({with_heads(8, 4), {.tp = tp}});
    }
  }
}

TEST_CASE("Every multiplier that works puts the heads where the formulae say") {
  std::size_t cases = 0;
  for (const std::uint64_t kv_heads : {1, 2, 3, 4})
    for (const std::uint64_t group : {1, 2, 4, 6})
      for (const std::uint64_t tp : {2, 3, 4, 6, 8, 12})
        for (std::uint64_t m = 1; m <= tp; ++m) {
          Case c{with_heads(kv_heads * group, kv_heads), {.tp = tp, .kv_size_multiplier = m}};
          c.model.layers = 1;
          if (!is_legal(c.model, c.options) || (kv_heads >= tp && kv_heads % tp == 0)) continue;
          ++cases;
          DYNAMIC_SECTION(c.model.heads << " heads, " << kv_heads << " key/value heads, tp " << tp << ", multiplier "
                                        << m) {
            check_case(c);
          }
        }
  CHECK(cases > 20);
}

TEST_CASE("A fused grouped-query projection joins the rank's q, k and v") {
  for (const std::uint64_t tp : {4, 8})
    for (const char* family : {"llama", "granite"}) {
      DYNAMIC_SECTION(family << ", tp " << tp) {
        Case c{with_heads(16, 2), {.tp = tp, .fuse_qkv = true}};
        c.model.attention_bias = c.model.mlp_bias = true;
        c.model.model_type = family;
        check_case(c);
      }
    }
}

TEST_CASE("As many key/value heads as query heads are fused with stride three") {
  Case c{with_heads(4, 4), {.tp = 2, .fuse_qkv = true}};
  c.model.model_type = "qwen2";
  check_case(c);
  c.options.tp = 4;
  check_case(c);
}

TEST_CASE("Multi-head attention whose heads the ranks do not divide is refused, since no multiplier helps") {
  const Case c{with_heads(6, 6), {.tp = 4}};
  REQUIRE_FALSE(is_legal(c.model, c.options));
  const TempDir temp;
  Random random(3);
  write_model(temp / "model", c.model, random_tensors(c.model, random));
  CHECK(error_of([&] { plan_shard(request_of(c, temp)); }).kind() == ErrorKind::kUsage);
}

TEST_CASE("Layers lie on the ranks of their stages, whole, interleaved and cut by hand") {
  Case c{with_heads(4, 2), {.tp = 2, .pp = 3}};
  c.model.layers = 7;
  check_case(c);
  c.options = {.tp = 2, .pp = 2, .vpp = 3};
  check_case(c);
  c.options = {.tp = 1, .pp = 1, .vpp = 7};
  check_case(c);
  c.options = {.tp = 2, .pp = 2, .vpp = 2, .cuts = {0, 4, 5}};
  check_case(c);
}

TEST_CASE("A tied output matrix stands with the embedding on the last stage") {
  Case c{with_heads(4, 2), {.tp = 2, .pp = 2}};
  c.model.tied = true;
  check_case(c);
  c.options.pp = 1;
  check_case(c);
}

TEST_CASE("Every family is sharded by the same formulae") {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "granite"}) {
    DYNAMIC_SECTION(family) {
      Case c{with_heads(8, 2), {.tp = 4, .pp = 2}};
      c.model.model_type = family;
      c.model.head_dim = 6;  // not hidden / heads
      c.model.inv_freq = std::string(family) == "llama";
      check_case(c);
    }
  }
}

}  // namespace
}  // namespace reshard::test
