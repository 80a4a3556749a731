// The layout nxd over random models and meshes: both orders of replicated heads, heads of zeros, there and back.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Random models come back from the layout nxd in either order of heads, padded or not") {
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
    request.target.layout = layout("nxd"), request.target.format = random() % 3 ? Format::kPytorch : Format::kXser;
    request.target.options.set_flag("pad-attn-heads", random() % 2);
    const bool is_adjacent = random() % 2;
    request.target.options.set("kv-replication", is_adjacent ? "adjacent" : "tiled");
    request.target.options.set_flag("fuse-qkv", random() % 2);
    INFO(model.config().dump() << " tp " << tp << " pp " << pp << " pad "
                               << request.target.options.flag("pad-attn-heads") << " adjacent " << is_adjacent
                               << " fused " << request.target.options.flag("fuse-qkv"));
    const TensorMap tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    std::unique_ptr<Job> job;
    try {
      job = plan_shard(request);
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.kind() == ErrorKind::kUsage);
      // With heads of zeros nothing of attention is in the way, but that the copies are as many on each rank.
      if (request.target.options.flag("pad-attn-heads")) CHECK_THAT(error.what(), Says("is not a multiple of"));
      continue;
    }
    execute(*job, unsynced());
    ConsolidateRequest back;
    back.source.path = temp / "out";
    back.output_directory = temp / "whole";
    back.source.options.set("kv-replication", is_adjacent ? "adjacent" : "tiled");
    consolidate(back);
    CHECK((read_model(temp / "whole") == tensors));
    ++done;
    adjacent += is_adjacent;
    padded += std::any_of(job->target.logical.begin(), job->target.logical.end(),
                          [](const LogicalTensor& tensor) { return static_cast<bool>(tensor.filler); });
  }
  if (has_all_seeds()) {
    CHECK(done > 70);
    CHECK(padded > 15);
    CHECK(adjacent > 30);
  }
}

TEST_CASE("With adjacent copies every projection is what the hardware takes: queries in order, each beside its head") {
  for (const bool fused : {false, true})
    for (const std::uint32_t tp : {4u, 8u}) {
      DYNAMIC_SECTION("tp " << tp << (fused ? ", fused" : "")) {
        const TempDir temp;
        TinyModel model;
        model.heads = 16;
        model.kv_heads = 2;
        model.head_dim = 2;
        model.layers = 1;
        model.model_type = "qwen2";  // which has biases of q, k and v
        Random random(3);
        write_model(temp / "model", model, random_tensors(model, random));
        ShardRequest request = shard_request(temp / "model", temp / "out", tp);
        request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
        request.target.options.set_flag("fuse-qkv", fused);
        request.target.options.set_number("kv-size-multiplier", tp);  // slots for two heads on each rank
        request.target.options.set("kv-replication", "adjacent");
        const TensorMap whole = read_model(temp / "model");
        shard(request);
        const auto ranks = read_shards(temp / "out");
        REQUIRE(ranks.size() == tp);
        const std::string prefix = "model.layers.0.self_attn.";
        const std::uint64_t copies = tp, queries = 16 / tp;
        for (std::uint64_t rank = 0; rank < tp; ++rank) {
          const TensorMap& held = ranks.at("tp_rank_0" + std::to_string(rank) + "_pp_rank_00");
          for (const std::string leaf : {"weight", "bias"}) {
            const auto heads = [&](const char* linear, std::uint64_t first, std::uint64_t count) {
              const std::string& bytes = whole.at(prefix + linear + "." + leaf).bytes;
              const std::size_t head_bytes = 2 * (leaf == "weight" ? model.hidden : 1) * 2;
              return bytes.substr(first * head_bytes, count * head_bytes);
            };
            const std::string query = heads("q_proj", rank * queries, queries);
            std::string key, value;  // two slots a rank, slot s has head s / copies
            for (const std::uint64_t slot : {2 * rank, 2 * rank + 1}) {
              key += heads("k_proj", slot / copies, 1);
              value += heads("v_proj", slot / copies, 1);
            }
            const std::string joined = prefix + "qkv_proj." + leaf + "_";
            if (fused) {
              CHECK((held.at(joined + "qkv").bytes == query + key + value));
            } else {
              CHECK((held.at(joined + "q").bytes == query));
              CHECK((held.at(joined + "k").bytes == key));
              CHECK((held.at(joined + "v").bytes == value));
            }
          }
          const TensorData& output = whole.at(prefix + "o_proj.weight");
          std::string columns;
          const std::size_t row_bytes = 32 * 2, part_bytes = row_bytes / tp;
          for (std::uint64_t row = 0; row < model.hidden; ++row)
            columns += output.bytes.substr(row * row_bytes + rank * part_bytes, part_bytes);
          CHECK((held.at(prefix + "o_proj.weight").bytes == columns));
        }
      }
    }
}

TEST_CASE("Fused projections with heads of zeros are told by the output projection, or by what is said of them") {
  const auto round = [](std::uint64_t heads, std::uint64_t kv_heads, std::uint32_t tp,
                        std::optional<std::uint64_t> multiplier, bool fused, bool said) {
    CAPTURE(heads, kv_heads, tp, fused, said);
    const TempDir temp;
    TinyModel model;
    model.heads = heads;
    model.kv_heads = kv_heads;
    model.head_dim = 2;
    model.layers = 1;
    model.vocab = model.intermediate = 24;
    Random random(5);
    const TensorMap tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    ShardRequest request = shard_request(temp / "model", temp / "out", tp);
    request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
    request.target.options.set_flag("fuse-qkv", fused);
    request.target.options.set_flag("pad-attn-heads", true);
    if (multiplier) request.target.options.set_number("kv-size-multiplier", *multiplier);
    shard(request);
    ConsolidateRequest back;
    back.source.path = temp / "out";
    back.output_directory = temp / "whole";
    back.source.options.set_flag("pad-attn-heads", said);
    if (said && multiplier) back.source.options.set_number("kv-size-multiplier", *multiplier);
    consolidate(back);
    CHECK((read_model(temp / "whole") == tensors));
  };
  round(12, 3, 2, {}, true, false);
  round(24, 6, 4, {}, true, false);
  round(2, 1, 4, 2, false, true);
  round(2, 1, 4, 2, true, true);
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
  request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage,
                                               .says = "do not divide over its 2 copies",
                                               .hint = "`pad-attn-heads` pads sizes that 4 ranks do not divide"});
  request.target.options.set_flag("pad-attn-heads", true);
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
