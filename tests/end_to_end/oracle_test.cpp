// What each rank holds, against the formulae of the reference written with numeric views.

#include "support/oracle.h"

#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

struct Case {
  TinyModel model;
  OracleOptions options;
};

ShardRequest request_of(const Case& c, const TempDir& temp) {
  ShardRequest request = shard_request(temp / "model", temp / "out");
  set_target(request.target, c.options);
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

TEST_CASE("Multi-head attention whose heads the ranks do not divide is refused, since no multiplier helps") {
  const Case c{with_heads(6, 6), {.tp = 4}};
  REQUIRE_FALSE(is_legal(c.model, c.options));
  const TempDir temp;
  Random random(3);
  write_model(temp / "model", c.model, random_tensors(c.model, random));
  CHECK(error_of([&] { plan_shard(request_of(c, temp)); }).kind() == ErrorKind::kUsage);
}

TinyModel with(TinyModel model, const std::function<void(TinyModel&)>& change) {
  change(model);
  return model;
}

std::vector<std::pair<std::string, Case>> rows() {
  const auto layers = [](TinyModel& m) { m.layers = 7; };
  const auto tied = [](TinyModel& m) { m.tied = true; };
  const TinyModel deep = with(with_heads(4, 2), layers), small = with(with_heads(4, 2), tied);
  const TinyModel qwen2 = with(with_heads(4, 4), [](TinyModel& m) { m.model_type = "qwen2"; });
  std::vector<std::pair<std::string, Case>> rows{
      {"separate projections, one rank", {with_heads(8, 4), {.tp = 1}}},
      {"separate projections, two ranks", {with_heads(8, 4), {.tp = 2}}},
      {"separate projections, four ranks", {with_heads(8, 4), {.tp = 4}}},
      {"as many key/value heads as query heads, fused with stride three", {qwen2, {.tp = 2, .fuse_qkv = true}}},
      {"the same on four ranks", {qwen2, {.tp = 4, .fuse_qkv = true}}},
      {"stages of seven layers", {deep, {.tp = 2, .pp = 3}}},
      {"interleaved stages", {deep, {.tp = 2, .pp = 2, .vpp = 3}}},
      {"a virtual stage per layer", {deep, {.tp = 1, .pp = 1, .vpp = 7}}},
      {"stages cut by hand", {deep, {.tp = 2, .pp = 2, .vpp = 2, .cuts = {0, 4, 5}}}},
      {"a tied output matrix with the embedding on the last stage", {small, {.tp = 2, .pp = 2}}},
      {"a tied output matrix on one stage", {small, {.tp = 2, .pp = 1}}},
  };
  for (const std::uint64_t tp : {4, 8})
    for (const char* family : {"llama", "granite"}) {
      Case c{with_heads(16, 2), {.tp = tp, .fuse_qkv = true}};
      c.model.attention_bias = c.model.mlp_bias = true;
      c.model.model_type = family;
      rows.emplace_back(std::string("fused grouped-query projection of ") + family + ", tp " + std::to_string(tp), c);
    }
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3", "granite"}) {
    Case c{with_heads(8, 2), {.tp = 4, .pp = 2}};
    c.model.model_type = family;
    c.model.head_dim = 6;  // not hidden / heads
    c.model.inv_freq = family == "llama";
    rows.emplace_back("family " + family, c);
  }
  return rows;
}

TEST_CASE("Every rank holds what the formulae of the reference say") {
  for (const auto& [title, c] : rows()) DYNAMIC_SECTION(title) {
      check_case(c);
    }
}

}  // namespace
}  // namespace reshard::test
