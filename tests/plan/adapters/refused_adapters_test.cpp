// Sharded adapters made by hand that cannot be consolidated, and where those go that can.

#include <nlohmann/json.hpp>

#include "plan/adapters/hand_made_adapters.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// One adapter with one tensor of a fused linear besides lora_A and lora_B.
Error error_of_tensor(const std::string& in_metadata, const json& entry, const std::string& in_files,
                      const TensorData& tensor) {
  HandMade hand;
  hand.add_base();
  hand.add_module("mlp", fused_spec());
  hand.add_module("self_attn", gqa_spec("lora"));
  const std::string fused = kLayer + "mlp.gate_up_proj.";
  hand.parameters[fused + "lora_A.default.weight"] = whole();
  hand.parameters[fused + "lora_B.default.weight"] = cut(0, 2);
  hand.parameters["m.lora_B.default.weight"] = cut(0);
  if (!in_metadata.empty()) hand.parameters[in_metadata] = entry;
  const TensorMap rank{{fused + "lora_A.weight", bytes({1, 2}, "ab")},
                       {fused + "lora_B.weight", bytes({6, 1}, "001111")},
                       {"m.lora_B.weight", bytes({1, 1}, "0")},
                       {in_files, tensor}};
  const TempDir temp;
  hand.write(temp / "in", "default", {rank, rank});
  const Error error = planning_error(temp);
  CHECK_THAT(error.tensor(), Says(in_files));
  return error;
}

TEST_CASE("A tensor that the metadata does not explain is an error that names it, and never lost") {
  const std::string fused = kLayer + "mlp.gate_up_proj.";
  const std::string qkv = kLayer + "self_attn.qkv_proj.";
  CHECK_THAT(error_of_tensor("", {}, "head.weight", bytes({1}, "h")).what(), Says("does not list it"));
  CHECK_THAT(error_of_tensor("head.modules_to_save.default2.weight", cut(0), "head.weight", bytes({1}, "h")).what(),
             Says("does not list it"));
  CHECK_THAT(error_of_tensor(fused + "lora_magnitude_vector.default.weight", whole(), fused + "lora_magnitude_vector",
                             bytes({6}, "445555"))
                 .what(),
             Says("contradicts its transformation spec"));
  check_error(error_of_tensor(qkv + "lora_magnitude_vector.default.weight", cut(0), qkv + "lora_magnitude_vector",
                              bytes({6}, "445555")),
              {.kind = ErrorKind::kUnsupported, .says = "belongs to a fused linear"});
  CHECK_THAT(
      error_of_tensor("m.lora_magnitude_vector.default.weight", whole(), "m.lora_magnitude_vector", bytes({1}, "4"))
          .what(),
      Says("does not fit its lora_B of [2, 1]"));
  CHECK_THAT(error_of_tensor("m.lora_B.default.bias", whole(), "m.lora_B.bias", bytes({1}, "4")).what(),
             Says("does not fit its lora_B"));
  CHECK_THAT(error_of_tensor("m.lora_A.default.weight", whole(), "m.lora_A.weight", bytes({2, 1}, "45")).what(),
             Says("does not fit its lora_B"));
}

/// An adapter of one module on two ranks, under `folder`.
void write_small(const fs::path& checkpoint, const std::string& folder, const std::string& in_metadata) {
  HandMade hand;
  hand.parameters["m.lora_A." + in_metadata + ".weight"] = cut(1);
  hand.parameters["m.lora_B." + in_metadata + ".weight"] = whole();
  const auto rank = [](const char* a) {
    return TensorMap{{"m.lora_A.weight", bytes({1, 1}, a)}, {"m.lora_B.weight", bytes({1, 1}, "b")}};
  };
  hand.write(checkpoint, folder, {rank("0"), rank("1")});
}

TEST_CASE("A folder that was renamed is known by the only adapter in its metadata, or refused") {
  const TempDir temp;
  write_small(temp / "in", "renamed", "first");
  CHECK(consolidated(temp, "renamed").size() == 2);
  HandMade two;
  for (const char* name : {"first", "second"}) two.parameters["m.lora_A." + std::string(name) + ".weight"] = cut(1);
  two.write(temp / "in", "renamed", {TensorMap{{"m.lora_A.weight", bytes({1, 1}, "0")}}, {}});
  check_error(planning_error(temp, request_of(temp / "in", temp / "out2")),
              {.says = "\"renamed\", but the metadata knows first, second"});
}

TEST_CASE("An adapter without its metadata, with a rank missing, or with ranks that differ is refused") {
  const TempDir temp;
  write_small(temp / "in", "default", "default");
  const fs::path shards = temp / "in/adapter_default/adapter_shards";
  const std::string metadata = read_file(shards / "mp_metadata_pp_rank_0.json");
  const fs::path last = shards / "model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  write_torch(last, {{"m.lora_A.weight", bytes({1, 1}, "1")}, {"m.lora_B.weight", bytes({1, 1}, "x")}});
  CHECK_THAT(error_of([&] { consolidated(temp); }).what(), Says("is a replica of m.lora_B.weight"));
  fs::remove(last);
  CHECK_THAT(planning_error(temp).what(), Says("dp_rank_00_tp_rank_01_pp_rank_00"));
  fs::rename(shards / "mp_metadata_pp_rank_0.json", shards / "mp_metadata_pp_rank_0.pt");
  CHECK(planning_error(temp).kind() == ErrorKind::kUnsupported);
  fs::remove(shards / "mp_metadata_pp_rank_0.pt");
  CHECK_THAT(planning_error(temp).what(), Says("no metadata that speaks of adapters"));
}

TEST_CASE("Adapters go beside their shards unless told otherwise, and never over or into them") {
  const TempDir temp;
  write_small(temp / "in", "default", "default");
  write_small(temp / "in", "x", "x");
  consolidate(request_of(temp / "in"));
  CHECK(read_tensors(temp / "in/adapter_model.safetensors").size() == 2);
  CHECK(read_tensors(temp / "in/x/adapter_model.safetensors").size() == 2);
  CHECK(fs::exists(temp / "in/x/adapter_config.json"));
  consolidate(request_of(temp / "in/adapter_x/adapter_shards"));
  CHECK(read_tensors(temp / "in/adapter_x/adapter_model.safetensors").size() == 2);
  for (const char* inside : {"in/adapter_x/adapter_shards", "in/adapter_x/adapter_shards/model/deep"})
    check_error(planning_error(temp, request_of(temp / "in", temp / inside)), {.kind = ErrorKind::kUsage});
  ConsolidateRequest other = request_of(temp / "in");
  other.target.format = Format::kPytorch;
  other.force = true;
  CHECK_THAT(planning_error(temp, other).what(), Says("adapter_model.safetensors"));
}

TEST_CASE("An adapter that could leave the output directory by its name is refused") {
  const TempDir temp;
  for (const char* name : {"..", ".", ""}) {
    INFO(name);
    const fs::path checkpoint = temp / (std::string("in") + name + "x");
    write_small(checkpoint, name, "a");
    CHECK(planning_error(temp, request_of(checkpoint, temp / "out")).kind() == ErrorKind::kBadInput);
  }
}

TEST_CASE("Adapters beside a model are left, and this is said") {
  const TempDir temp;
  Random random(3);
  const TinyModel model;
  write_model(temp / "model", model, random_tensors(model, random));
  shard(shard_request(temp / "model", temp / "in", 2));
  write_small(temp / "in", "x", "x");
  const auto job = plan_consolidate(request_of(temp / "in", temp / "out"));
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes[0], Says("adapter_x"));
  CHECK(job->family == "llama");
  CHECK(plan_consolidate(request_of(temp / "in/adapter_x", temp / "out"))->source.logical.size() == 2);
}

TEST_CASE("Shards of an adapter in a model's folder are refused, not taken for a model") {
  const TempDir temp;
  HandMade hand;
  hand.add_base();
  hand.add_module("mlp", fused_spec());
  const TensorMap rank{{kLayer + "mlp.gate_up_proj.lora_A.weight", bytes({1, 1}, "0")}};
  hand.write(temp.path(), "x", {rank, rank});
  fs::create_directories(temp / "in");
  fs::rename(temp / "adapter_x/adapter_shards", temp / "in/shards");
  CHECK(planning_error(temp).kind() == ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace reshard::test
