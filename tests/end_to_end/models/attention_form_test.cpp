// Attention's forms in NxD's checkpoints: three linears, GQAQKVColumnParallelLinear, fused or not. testdata/golden/neuron
// is what NxD's own code saved.

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStep = "checkpoint/step_3";

/// A conversion of the case's rank files to layout nxd, if no other is chosen.
ConvertRequest conversion_of(const fs::path& source, const fs::path& golden_case, const fs::path& output) {
  ConvertRequest request = convert_request(source, output);
  request.source.config = golden_case / "original";
  request.target.layout = layout("nxd");
  return request;
}

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
  const fs::path golden_case = testdata("golden/neuron/llama-qkv-linear-tp2");
  const TempDir temp;
  ShardRequest request = shard_request(golden_case / "original", temp / "out", 4);
  request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
  request.target.options.set("qkv-linear", "off");
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage,
                                               .says = "`qkv-linear` off: 4 ranks do not divide 2 key/value heads",
                                               .hint = "leave out `qkv-linear`"});
  CHECK_FALSE(fs::exists(temp / "out"));
}

/// A model with as many key/value heads as query heads, and its tensors.
TensorMap write_all_heads(const fs::path& directory) {
  TinyModel model;
  model.heads = model.kv_heads = 4;
  Random random(37);
  const TensorMap tensors = random_tensors(model, random);
  write_model(directory, model, tensors);
  return tensors;
}

TEST_CASE("One strided linear is kept in every layout of training, and becomes the module where that is asked for") {
  const TempDir temp;
  const TensorMap tensors = write_all_heads(temp / "model");
  ShardRequest request = shard_request(temp / "model", temp / "fused", 2);
  request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
  request.target.options.set("fuse-qkv");
  const auto job = plan_shard(request);
  CHECK_THAT(join(job->notes, "\n"),
             Says("attention is stored as qkv_proj.weight: the trainer loads it with qkv_linear=0, fuse_qkv=1"));
  execute(*job, unsynced());
  fs::path source = temp / "fused";
  for (const char* to : {"optimum", "ranks", "nxd"}) {
    CAPTURE(to);
    ConvertRequest there = convert_request(source, temp / to);
    there.target.layout = layout(to), there.target.tp = 4;
    convert(there);
    CHECK(projections(temp / to) == kStrided);
    source = temp / to;
  }
  CHECK(json::parse(read_file(temp / "optimum/trn_config.json")).at("fuse_qkv") == true);
  ConvertRequest on = convert_request(source, temp / "on");
  on.target.options.set("qkv-linear", "on");
  on.target.layout = layout("nxd");
  convert(on);
  CHECK(projections(temp / "on") == kModule);
  CHECK((consolidated(temp / "on", temp / "whole") == tensors));
}

TEST_CASE("Optimum-neuron's layout has the module only where its trainer makes it") {
  const TempDir temp;
  const fs::path golden_case = testdata("golden/neuron/llama-qkv-fused-tp2");
  ConvertRequest request = conversion_of(golden_case / kStep, golden_case, temp / "two");
  request.target.layout = layout("optimum");
  convert(request);
  CHECK(projections(temp / "two") == kThree);
  request.target.tp = 4;
  request.output_directory = temp / "four";
  const auto job = plan_convert(request);
  CHECK_THAT(join(job->notes, "\n"), Says("qkv_proj.weight_qkv: the trainer loads it with fuse_qkv=True"));
  execute(*job, unsynced());
  CHECK(projections(temp / "four") == kFusedModule);
  const json config = json::parse(read_file(temp / "four/trn_config.json"));
  CHECK(config.at("fuse_qkv") == true);
  CHECK(config.at("kv_size_multiplier").is_null());
}

TEST_CASE("Replicas and the order of heads are kept with the ranks") {
  const TempDir temp;
  TinyModel model;
  model.heads = 8;
  model.kv_heads = 2;
  Random random(5);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  for (const std::uint32_t tp : {2u, 4u}) {
    CAPTURE(tp);
    const fs::path made = temp / std::to_string(tp), kept = temp / ("kept" + std::to_string(tp));
    ShardRequest request = shard_request(temp / "model", made, tp);
    request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
    request.target.options.set_number("kv-size-multiplier", tp == 2 ? 2 : 4);  // not the fewest
    request.target.options.set("kv-replication", "adjacent");
    shard(request);
    ConvertRequest conversion = convert_request(made, kept);
    conversion.source.options.set("kv-replication", "adjacent");
    conversion.target.layout = layout("nxd"), conversion.target.pp = 2;
    const auto job = plan_convert(conversion);
    CHECK_THAT(join(job->notes, "\n"), Says(tp == 2 ? "kv_replicator=2" : "kv_replicator=4"));
    execute(*job, unsynced());
    conversion = convert_request(kept, temp / ("back" + std::to_string(tp)));
    conversion.source.options.set("kv-replication", "adjacent");
    conversion.target.layout = layout("nxd"), conversion.target.pp = 1;
    convert(conversion);
    CHECK((read_shards(conversion.output_directory) == read_shards(made)));
  }
}

TEST_CASE("A conversion of ranks with experts to NxD's training layout is refused") {
  for (const char* family : kExpertFamilies) {
    CAPTURE(family);
    const TempDir temp;
    write_case(family_case(family), temp / "model");
    shard(shard_request(temp / "model", temp / "ranks"));
    ConvertRequest request = convert_request(temp / "ranks", temp / "out");
    request.target.layout = layout("nxd");
    const Error error =
        check_refused([&] { plan_convert(request); },
                      {.kind = ErrorKind::kUnsupported, .says = "NxD's names and shapes for the experts of "});
    CHECK_THAT(error.tensor(), Says("expert"));
  }
  // Of a family that only the plan in config.json describes.
  const TempDir temp;
  Random random(7);
  write_safetensors(temp / "model/model.safetensors",
                    {{"model.layers.0.mlp.experts.0.up_proj.weight", random_tensor(random, DType::kBF16, {4, 2})},
                     {"model.layers.0.mlp.experts.0.down_proj.weight", random_tensor(random, DType::kBF16, {2, 4})}});
  write_file(temp / "model/config.json",
             json{{"model_type", "your_model"},
                  {"base_model_tp_plan",
                   {{"layers.*.mlp.experts.*.up_proj", "colwise"}, {"layers.*.mlp.experts.*.down_proj", "rowwise"}}}}
                 .dump());
  ShardRequest request = shard_request(temp / "model", temp / "out", 2);
  request.target.layout = layout("nxd");
  CHECK_THAT(error_of([&] { plan_shard(request); }).what(), Says("experts of your_model are unknown"));
}

TEST_CASE("The fewest replicas that give ranks whole heads are chosen and noted, and every layout is read back") {
  const TempDir temp;
  TinyModel model;
  model.heads = 12;
  model.kv_heads = 6;
  Random random(12);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  shard(shard_request(temp / "model", temp / "two", 2));
  const auto expected = expected_ranks(model, tensors, {.tp = 4, .kv_size_multiplier = 2});
  for (const char* name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    const auto check = [&](const Job& job, const fs::path& output) {
      CHECK_THAT(join(job.notes, "\n"), Says("`kv-size-multiplier` 2: the fewest replicas"));
      CHECK_THAT(join(job.notes, "\n"),
                 Says(name == std::string("nxd") ? "kv_replicator=2" : "loads it with kv_size_multiplier=2"));
      execute(job, unsynced());
      CHECK((read_shards(output) == expected));
      CHECK((consolidated(output, temp / "whole") == tensors));
    };
    ShardRequest request = shard_request(temp / "model", temp / name, 4);
    request.target.layout = layout(name);
    check(*plan_shard(request), temp / name);
    ConvertRequest conversion = convert_request(temp / "two", temp / (std::string(name) + "-converted"));
    conversion.target.layout = layout(name), conversion.target.tp = 4;
    check(*plan_convert(conversion), conversion.output_directory);
  }
  CHECK(json::parse(read_file(temp / "optimum/trn_config.json")).at("kv_size_multiplier") == 2);
}

TEST_CASE("The optimizer's states follow the form of attention, to the byte") {
  const TempDir temp;
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const auto request_of = [&](const fs::path& source, const fs::path& output) {
    ConvertRequest request = conversion_of(source, golden_case, output);
    request.source.with_optimizer = true;
    return request;
  };
  ConvertRequest there = request_of(golden_case / kStep, temp / "module");
  there.target.options.set("qkv-linear", "on");
  convert(there);
  CHECK(projections(temp / "module") == kModule);
  ConvertRequest kept = request_of(temp / "module", temp / "kept");
  convert(kept);
  CHECK(projections(temp / "kept") == kModule);
  CHECK(snapshot(temp / "kept") == snapshot(temp / "module"));
  ConvertRequest back = request_of(temp / "module", temp / "back");
  back.target.options.set("qkv-linear", "off");
  convert(back);
  ConvertRequest plain = request_of(golden_case / kStep, temp / "plain");
  convert(plain);
  CHECK(projections(temp / "plain") == kThree);
  CHECK(snapshot(temp / "back") == snapshot(temp / "plain"));
}

}  // namespace
}  // namespace reshard::test
