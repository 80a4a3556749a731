// The layout nxd over random models and meshes: both orders of repeated heads, heads of zeros, there and back.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Random models come back from the layout nxd in either order of heads, filled up or not") {
  std::size_t done = 0, padded = 0, adjacent = 0;
  for (const std::uint64_t seed : seeds(150)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const TempDir temp;
    TinyModel model = random_model(random);
    model.intermediate = 48;
    model.vocab = 48;
    const auto tp = static_cast<std::uint32_t>(one_of(random, {2, 3, 4, 6, 8, 12}));
    const auto pp = static_cast<std::uint32_t>(pick(random, 1, std::min<std::uint64_t>(2, model.layers)));
    ShardRequest request = shard_request(temp / "model", temp / "out", tp, pp);
    request.sharding.form = {ShardsKind::kNxd, random() % 3 ? Format::kPytorch : Format::kXser};
    request.sharding.attention.pad_heads = random() % 2;
    request.sharding.attention.adjacent = random() % 2;
    request.sharding.attention.fuse_qkv = random() % 2;
    INFO(model.config().dump() << " tp " << tp << " pp " << pp << " pad " << request.sharding.attention.pad_heads
                               << " adjacent " << request.sharding.attention.adjacent << " fused "
                               << request.sharding.attention.fuse_qkv);
    const TensorMap tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    std::unique_ptr<Job> job;
    try {
      job = plan_shard(request);
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.kind() == ErrorKind::kUsage);
      // With heads of zeros nothing of attention is in the way, but that the copies are as many on each rank.
      if (request.sharding.attention.pad_heads) CHECK_THAT(error.what(), Says("is not a multiple of"));
      continue;
    }
    execute(*job, {});
    ConsolidateRequest back;
    back.checkpoint_directory = temp / "out";
    back.output_directory = temp / "whole";
    back.adjacent = request.sharding.attention.adjacent;
    consolidate(back);
    CHECK((read_model(temp / "whole") == tensors));
    ++done;
    adjacent += back.adjacent;
    padded += std::any_of(job->target.logical.begin(), job->target.logical.end(),
                          [](const LogicalTensor& tensor) { return tensor.filler.has_value(); });
  }
  if (!std::getenv("RESHARD_TEST_SEED")) {
    CHECK(done > 70);
    CHECK(padded > 15);
    CHECK(adjacent > 30);
  }
}

TEST_CASE("Heads of zeros stand after those of each key/value head") {
  const TempDir temp;
  TinyModel model;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_dim = 2;
  model.layers = 1;
  Random random(11);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  ShardRequest request = shard_request(temp / "model", temp / "out", 4);
  request.sharding.form = {ShardsKind::kNxd, Format::kPytorch};
  const Error without = error_of([&] { plan_shard(request); });
  CHECK_THAT(without.what(), Says("do not divide over its 2 copies"));
  request.sharding.attention.pad_heads = true;
  shard(request);
  const std::string& query = tensors.at("model.layers.0.self_attn.q_proj.weight").bytes;
  const std::size_t head_bytes = 2 * model.hidden * 2;
  const std::string zeros(head_bytes, '\0');
  const auto head = [&](std::size_t number) { return query.substr(number * head_bytes, head_bytes); };
  // trn1's order: slots are K0 K1 K0 K1, of three queries each in two copies.
  const std::string expected[] = {head(0) + head(1), head(3) + head(4), head(2) + zeros, head(5) + zeros};
  const auto ranks = read_shards(temp / "out");
  REQUIRE(ranks.size() == 4);
  std::size_t rank = 0;
  for (const auto& [name, held] : ranks)
    CHECK((held.at("model.layers.0.self_attn.qkv_proj.weight_q").bytes == expected[rank++]));
}

}  // namespace
}  // namespace reshard::test
