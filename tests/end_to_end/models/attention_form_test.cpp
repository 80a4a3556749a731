// Attention's forms in NxD's checkpoints: three linears, GQAQKVColumnParallelLinear, fused or not. testdata/golden/neuron
// is what NxD's own code saved.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/oracle.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStep = "checkpoint/step_3";

/// The last parts of attention's names in the first layer, without o_proj: "q_proj.weight", sorted.
std::vector<std::string> projections(const fs::path& directory) {
  const std::string prefix = "model.layers.0.self_attn.";
  std::vector<std::string> names;
  const auto ranks = read_shards(directory);
  for (const auto& [name, tensor] : ranks.begin()->second)
    if (name.starts_with(prefix) && name.find("o_proj") == name.npos) names.push_back(name.substr(prefix.size()));
  return names;
}

const std::vector<std::string> kThree{"k_proj.weight", "q_proj.weight", "v_proj.weight"};
const std::vector<std::string> kModule{"qkv_proj.weight_k", "qkv_proj.weight_q", "qkv_proj.weight_v"};
const std::vector<std::string> kFusedModule{"qkv_proj.weight_qkv"};
const std::vector<std::string> kStrided{"qkv_proj.weight"};

TEST_CASE("Three linears for heads that the ranks do not divide are refused, with what would do") {
  const TempDir temp;
  const fs::path model = testdata("golden/neuron/llama-qkv-linear-tp2/original");
  check_refused(
      [&] {
        plan_shard(shard_request(model, temp / "out", {.layout = "nxd", .tp = 4, .options = {"qkv-linear=off"}}));
      },
      {.kind = ErrorKind::kUsage,
       .says = "`qkv-linear` off: 4 ranks do not divide 2 key/value heads",
       .hint = "leave out `qkv-linear`",
       .unwritten = temp / "out"});
}

TEST_CASE("One strided linear is kept in every layout of training, and becomes the module where that is asked for") {
  const Input input({.heads = 4, .kv_heads = 4});
  const auto job =
      plan_shard(shard_request(input / "model", input / "fused", {.layout = "nxd", .tp = 2, .options = {"fuse-qkv"}}));
  CHECK_THAT(joined_notes(*job),
             Says("attention is stored as qkv_proj.weight: the trainer loads it with qkv_linear=0, fuse_qkv=1"));
  execute(*job, unsynced());
  fs::path source = input / "fused";
  for (const char* to : {"optimum", "ranks", "nxd"}) {
    CAPTURE(to);
    convert(source, input / to, {.layout = to, .tp = 4});
    CHECK(projections(input / to) == kStrided);
    source = input / to;
  }
  CHECK(json::parse(read_file(input / "optimum/trn_config.json")).at("fuse_qkv") == true);
  convert(source, input / "on", {.layout = "nxd", .options = {"qkv-linear=on"}});
  CHECK(projections(input / "on") == kModule);
  CHECK((consolidated(input / "on", input / "whole") == input.tensors));
}

TEST_CASE("Optimum-neuron's layout has the module only where its trainer makes it") {
  const TempDir temp;
  const fs::path golden_case = testdata("golden/neuron/llama-qkv-fused-tp2");
  RequestFields fields{.layout = "optimum", .config = golden_case / "original"};
  convert(golden_case / kStep, temp / "two", fields);
  CHECK(projections(temp / "two") == kThree);
  fields.tp = 4;
  const auto job = plan_convert(convert_request(golden_case / kStep, temp / "four", fields));
  CHECK_THAT(joined_notes(*job), Says("qkv_proj.weight_qkv: the trainer loads it with fuse_qkv=True"));
  execute(*job, unsynced());
  CHECK(projections(temp / "four") == kFusedModule);
  const json config = json::parse(read_file(temp / "four/trn_config.json"));
  CHECK(config.at("fuse_qkv") == true);
  CHECK(config.at("kv_size_multiplier").is_null());
}

TEST_CASE("Replicas and the order of heads are kept with the ranks") {
  for (const std::string tp : {"2", "4"}) {  // and as many replicas, which are not the fewest
    CAPTURE(tp);
    const Input input(
        {.heads = 8},
        {.layout = "nxd", .tp = tp == "2" ? 2 : 4, .options = {"kv-size-multiplier=" + tp, "kv-replication=adjacent"}});
    RequestFields staged{.layout = "nxd", .pp = 2, .source_options = {"kv-replication=adjacent"}};
    const auto job = plan_convert(convert_request(input.path(), input / "kept", staged));
    CHECK_THAT(joined_notes(*job), Says("kv_replicator=" + tp));
    execute(*job, unsynced());
    staged.pp = 1;
    convert(input / "kept", input / "back", staged);
    CHECK((read_shards(input / "back") == read_shards(input.path())));
  }
}

TEST_CASE("A conversion of ranks with experts to NxD's training layout is refused") {
  for (const std::string family : kExpertFamilies) {
    CAPTURE(family);
    if (family == "mixtral" || family == "dbrx") continue;  // NxD's names are known
    const Input input({.layout = "ranks", .tp = 1},
                      [&](const fs::path& at) { return write_case(family_case(family), at); });
    const Error error =
        check_refused([&] { plan_convert(convert_request(input.path(), input / "nxd", {.layout = "nxd"})); },
                      {.kind = ErrorKind::kUnsupported, .says = "NxD's names and shapes for the experts of "});
    CHECK_THAT(error.tensor(), Says("expert"));
  }
  // Of a family that only the plan in config.json describes.
  const TempDir temp;
  Random random(7);
  const std::string expert = "model.layers.0.mlp.experts.0.";
  write_safetensors(temp / "model/model.safetensors",
                    {{expert + "up_proj.weight", random_tensor(random, DType::kBF16, {4, 2})},
                     {expert + "down_proj.weight", random_tensor(random, DType::kBF16, {2, 4})}});
  write_file(temp / "model/config.json", R"({"model_type": "your_model", "base_model_tp_plan": {
    "layers.*.mlp.experts.*.up_proj": "colwise", "layers.*.mlp.experts.*.down_proj": "rowwise"}})");
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", {.layout = "nxd", .tp = 2})); },
                {.kind = ErrorKind::kUnsupported, .says = "experts of your_model are unknown"});
}

TEST_CASE("The fewest replicas that give ranks whole heads are chosen and noted, and every layout is read back") {
  const Input input({.heads = 12, .kv_heads = 6}, {.layout = "ranks", .tp = 2});
  const auto expected = expected_ranks(input.model, input.tensors, {.tp = 4, .kv_size_multiplier = 2});
  for (const std::string name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    const auto check = [&](const Job& job) {
      CHECK_THAT(joined_notes(job), Says("`kv-size-multiplier` 2: the fewest replicas"));
      CHECK_THAT(joined_notes(job), Says(name == "nxd" ? "kv_replicator=2" : "loads it with kv_size_multiplier=2"));
      execute(job, unsynced());
      CHECK((read_shards(job.output_directory) == expected));
      CHECK((consolidated(job.output_directory, input / "whole") == input.tensors));
    };
    check(*plan_shard(shard_request(input / "model", input / name, {.layout = name, .tp = 4})));
    check(*plan_convert(convert_request(input.path(), input / (name + "-converted"), {.layout = name, .tp = 4})));
  }
  CHECK(json::parse(read_file(input / "optimum/trn_config.json")).at("kv_size_multiplier") == 2);
}

TEST_CASE("The optimizer's states follow the form of attention, to the byte") {
  const TempDir temp;
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const auto convert_to = [&](const fs::path& source, const char* output, std::vector<std::string> options) {
    convert(
        source, temp / output,
        {.layout = "nxd", .options = std::move(options), .config = golden_case / "original", .with_optimizer = true});
  };
  convert_to(golden_case / kStep, "module", {"qkv-linear=on"});
  CHECK(projections(temp / "module") == kModule);
  convert_to(temp / "module", "kept", {});
  CHECK(projections(temp / "kept") == kModule);
  CHECK(snapshot(temp / "kept") == snapshot(temp / "module"));
  convert_to(temp / "module", "back", {"qkv-linear=off"});
  convert_to(golden_case / kStep, "plain", {});
  CHECK(projections(temp / "plain") == kThree);
  CHECK(snapshot(temp / "back") == snapshot(temp / "plain"));
}

}  // namespace
}  // namespace reshard::test
