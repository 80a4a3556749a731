// The layout nxd over random models and meshes: both orders of replicated heads, heads of zeros, there and back.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/plan/source/tags.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

RequestFields to_nxd(std::uint32_t tp, const std::vector<std::string>& options) {
  return {.layout = "nxd", .format = Format::kPytorch, .tp = tp, .options = options};
}

TEST_CASE("Random models come back from the layout nxd in either order of heads, padded or not") {
  std::size_t done = 0, padded = 0, adjacent = 0;
  for (const std::uint64_t seed : seeds(150)) {
    Random random(seed);
    TinyModel model = random_model(random);
    model.intermediate = model.vocab = 48;
    RequestFields fields = to_nxd(static_cast<std::uint32_t>(one_of(random, {2, 3, 4, 6, 8, 12})), {});
    fields.pp = static_cast<std::uint32_t>(pick(random, 1, std::min<std::uint64_t>(2, model.layers)));
    if (random() % 3 == 0) fields.format = Format::kXser;
    const bool pads = random() % 2, is_adjacent = random() % 2;
    const std::string order = is_adjacent ? "kv-replication=adjacent" : "kv-replication=tiled";
    fields.options.push_back(order);
    if (pads) fields.options.emplace_back("pad-attn-heads");
    if (random() % 2) fields.options.emplace_back("fuse-qkv");
    INFO("RESHARD_TEST_SEED=" << seed << " " << model.config().dump() << " tp " << *fields.tp << " pp " << *fields.pp
                              << fmt::format(" {}", fmt::join(fields.options, " ")));
    const Input input(model, {}, seed);
    std::unique_ptr<Job> job;
    try {
      job = plan_shard(shard_request(input.path(), input / "out", fields));
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.kind() == ErrorKind::kUsage);
      // With heads of zeros nothing of attention is in the way, but that the copies are as many on each rank.
      if (pads) CHECK_THAT(error.what(), Says("is not a multiple of"));
      continue;
    }
    execute(*job, unsynced());
    CHECK((consolidated(input / "out", input / "whole", {.source_options = {order}}) == input.tensors));
    ++done;
    adjacent += is_adjacent;
    padded += std::any_of(job->target.logical.begin(), job->target.logical.end(),
                          [](const LogicalTensor& tensor) { return static_cast<bool>(tensor.constant()); });
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
        RequestFields fields = to_nxd(tp, {"kv-replication=adjacent"});
        fields.options.push_back(fmt::format("kv-size-multiplier={}", tp));  // slots for two heads on each rank
        if (fused) fields.options.emplace_back("fuse-qkv");
        // A family with biases of q, k and v.
        const Input input({.model_type = "qwen2", .layers = 1, .heads = 16, .kv_heads = 2, .head_dim = 2}, fields);
        const auto ranks = read_shards(input / "out");
        REQUIRE(ranks.size() == tp);
        const std::string prefix = "model.layers.0.self_attn.";
        const std::uint64_t copies = tp, queries = 16 / tp;
        for (std::uint64_t rank = 0; rank < tp; ++rank) {
          const TensorMap& held = ranks.at(fmt::format("tp_rank_{:02}_pp_rank_00", rank));
          for (const std::string leaf : {"weight", "bias"}) {
            const auto heads = [&](const char* linear, std::uint64_t first, std::uint64_t count) {
              const std::string& bytes = input.tensors.at(prefix + linear + "." + leaf).bytes;
              const std::size_t head_bytes = 2 * (leaf == "weight" ? input.model.hidden : 1) * 2;
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
          const TensorData& output = input.tensors.at(prefix + "o_proj.weight");
          const std::string columns = dcp::slice(output, {0, rank * 32 / tp}, {input.model.hidden, 32 / tp});
          CHECK((held.at(prefix + "o_proj.weight").bytes == columns));
        }
      }
    }
}

TEST_CASE("Fused projections with heads of zeros are told by the output projection, or by what is said of them") {
  struct Row {
    std::uint64_t heads, kv_heads;
    std::uint32_t tp;
    std::vector<std::string> options, said;
  };
  const std::vector<std::string> both{"pad-attn-heads", "kv-size-multiplier=2"};
  for (const Row& row : {Row{12, 3, 2, {"pad-attn-heads", "fuse-qkv"}, {}},
                         {24, 6, 4, {"pad-attn-heads", "fuse-qkv"}, {}},
                         {2, 1, 4, both, both},
                         {2, 1, 4, {"pad-attn-heads", "kv-size-multiplier=2", "fuse-qkv"}, both}}) {
    CAPTURE(row.heads, row.tp, row.options);
    const TinyModel model{
        .intermediate = 24, .layers = 1, .heads = row.heads, .kv_heads = row.kv_heads, .head_dim = 2, .vocab = 24};
    const Input input(model, to_nxd(row.tp, row.options));
    CHECK((consolidated(input.path(), input / "whole", {.source_options = row.said}) == input.tensors));
  }
}

TEST_CASE("The output is a tag that NxD takes for complete, without an optimizer too") {
  const Input input;
  const auto job = plan_shard(shard_request(input / "model", input / "run/step_7", {.layout = "nxd", .tp = 2}));
  CHECK(job->text_files.back().path == "done");
  CHECK(job->text_files.back().is_last);
  execute(*job, unsynced());
  for (const char* marker : {"checkpoint", "done"}) CHECK(read_file(input / "run/step_7" / marker) == "1");
  CHECK(find_checkpoint(input / "run", {}).path == input / "run/step_7");
}

TEST_CASE("Heads of zeros stand after those of each key/value head") {
  const Input input({.layers = 1, .heads = 6, .kv_heads = 2, .head_dim = 2});
  check_refused([&] { shard(input.path(), input / "out", to_nxd(4, {})); },
                {.kind = ErrorKind::kUsage,
                 .says = "do not divide over its 2 copies",
                 .hint = "`pad-attn-heads` pads sizes that 4 ranks do not divide"});
  shard(input.path(), input / "out", to_nxd(4, {"pad-attn-heads"}));
  const std::string& query = input.tensors.at("model.layers.0.self_attn.q_proj.weight").bytes;
  const std::size_t head_bytes = 2 * input.model.hidden * 2;
  const std::string zeros(head_bytes, '\0');
  const auto head = [&](std::size_t number) { return query.substr(number * head_bytes, head_bytes); };
  // trn1's order: slots are K0 K1 K0 K1, of three queries each in two copies.
  const std::string expected[] = {head(0) + head(1), head(3) + head(4), head(2) + zeros, head(5) + zeros};
  const auto ranks = read_shards(input / "out");
  REQUIRE(ranks.size() == 4);
  std::size_t rank = 0;
  for (const auto& [name, held] : ranks)
    CHECK((held.at("model.layers.0.self_attn.qkv_proj.weight_q").bytes == expected[rank++]));
}

}  // namespace
}  // namespace reshard::test
