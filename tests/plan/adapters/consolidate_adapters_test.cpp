// Sharded adapters made by hand: what the reference loses or refuses.

#include <nlohmann/json.hpp>

#include "plan/adapters/hand_made_adapters.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("Adapters are told apart by their whole names, whatever is in them") {
  const std::vector<std::string> names = {
      "a", "a.b", "a-b", "ab", "my ad", "lora_A", "weight", "default", "modules_to_save"};
  HandMade hand;
  for (const std::string& name : names) {
    hand.parameters["m.lora_A." + name + ".weight"] = cut(1);
    hand.parameters["m.lora_B." + name + ".weight"] = whole();
    hand.parameters["head.modules_to_save." + name + ".weight"] = cut(0);
  }
  const TempDir temp;
  char value = 'A';
  for (const std::string& name : names) {
    const TensorData b = bytes({1, 1}, std::string(1, value));
    hand.write(temp / "in", name,
               {TensorMap{{"m.lora_A.weight", bytes({1, 1}, "0")}, {"m.lora_B.weight", b}, {"head.weight", b}},
                TensorMap{{"m.lora_A.weight", bytes({1, 1}, "1")}, {"m.lora_B.weight", b}, {"head.weight", b}}});
    ++value;
  }
  consolidate(request_of(temp / "in", temp / "out"));
  value = 'A';
  for (const std::string& name : names) {
    INFO(name);
    const fs::path folder = name == "default" ? temp / "out" : temp / "out" / name;
    CHECK(read_tensors(folder / "adapter_model.safetensors") ==
          TensorMap{{"m.lora_A.weight", bytes({1, 2}, "01")},
                    {"m.lora_B.weight", bytes({1, 1}, std::string(1, value))},
                    {"head.weight", bytes({2, 1}, std::string(2, value))}});
    CHECK(fs::exists(folder / "adapter_config.json"));
    ++value;
  }
}

TEST_CASE("What stands beside lora_A and lora_B is consolidated where the metadata says how") {
  HandMade hand;
  hand.add_base();
  hand.add_module("mlp", fused_spec());
  hand.add_module("self_attn", gqa_spec());
  const std::string fused = kLayer + "mlp.gate_up_proj.";
  hand.parameters[fused + "lora_A.default.weight"] = whole();
  hand.parameters[fused + "lora_B.default.weight"] = cut(0, 2);
  hand.parameters[fused + "lora_B.default.bias"] = cut(0, 2);
  hand.parameters[fused + "lora_magnitude_vector.default.weight"] = cut(0, 2);
  hand.parameters["embed.lora_embedding_A.default"] = whole();
  hand.parameters["embed.base_layer.weight"] = cut(0);
  hand.parameters["head.modules_to_save.default.weight"] = cut(0);
  hand.parameters["frozen.lora_A.default.weight"] = whole();
  TensorMap rank{{fused + "lora_A.weight", bytes({1, 2}, "ab")},
                 {fused + "lora_B.weight", bytes({6, 1}, "001111")},
                 {fused + "lora_B.bias", bytes({6}, "223333")},
                 {fused + "lora_magnitude_vector", bytes({6}, "445555")},
                 {"embed.lora_embedding_A", bytes({1, 3}, "xyz")},
                 {"embed.base_layer.weight", bytes({1, 1}, "e")},
                 {"head.weight", bytes({1, 2}, "hi")}};
  TensorMap other = rank;
  other[fused + "lora_B.weight"].bytes = "667777";
  const TempDir temp;
  hand.write(temp / "in", "default", {rank, other});
  const auto job = plan_consolidate(request_of(temp / "in", temp / "out"));
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes[0], Says("left out: frozen.lora_A.weight"));
  const std::string mlp = kLayer + "mlp.";
  CHECK(consolidated(temp) == TensorMap{{mlp + "gate_proj.lora_A.weight", bytes({1, 2}, "ab")},
                                        {mlp + "up_proj.lora_A.weight", bytes({1, 2}, "ab")},
                                        {mlp + "gate_proj.lora_B.weight", bytes({4, 1}, "0066")},
                                        {mlp + "up_proj.lora_B.weight", bytes({8, 1}, "11117777")},
                                        {mlp + "gate_proj.lora_B.bias", bytes({4}, "2222")},
                                        {mlp + "up_proj.lora_B.bias", bytes({8}, "33333333")},
                                        {mlp + "gate_proj.lora_magnitude_vector", bytes({4}, "4444")},
                                        {mlp + "up_proj.lora_magnitude_vector", bytes({8}, "55555555")},
                                        {"embed.lora_embedding_A", bytes({1, 3}, "xyz")},
                                        {"embed.base_layer.weight", bytes({2, 1}, "ee")},
                                        {"head.weight", bytes({2, 2}, "hihi")}});
}

TEST_CASE("Linears fused along rows share their lora_B") {
  HandMade hand;
  hand.parameters[kLayer + "mlp.gate_up_proj.base_layer.weight"] = cut(1, 2);
  hand.add_module("mlp", fused_spec("lora", 1));
  const std::string fused = kLayer + "mlp.gate_up_proj.";
  hand.parameters[fused + "lora_A.x.weight"] = cut(1, 2);
  hand.parameters[fused + "lora_B.x.weight"] = whole();
  const auto rank = [&](const char* a) {
    return TensorMap{{fused + "lora_A.weight", bytes({1, 6}, a)}, {fused + "lora_B.weight", bytes({1, 1}, "b")}};
  };
  const TempDir temp;
  hand.write(temp / "in", "x", {rank("001111"), rank("223333")});
  CHECK(consolidated(temp, "x") == TensorMap{{kLayer + "mlp.gate_proj.lora_A.weight", bytes({1, 4}, "0022")},
                                             {kLayer + "mlp.up_proj.lora_A.weight", bytes({1, 8}, "11113333")},
                                             {kLayer + "mlp.gate_proj.lora_B.weight", bytes({1, 1}, "b")},
                                             {kLayer + "mlp.up_proj.lora_B.weight", bytes({1, 1}, "b")}});
}

TEST_CASE("An output projection adapted alone is put back into the order of its heads, the fused layers left alone") {
  for (const bool mentioned : {true, false}) {  // old metadata has no peft_type at all
    HandMade hand;
    hand.add_base();
    json spec = gqa_spec();
    if (!mentioned) spec[1].erase("peft_type");
    hand.add_module("mlp", fused_spec(nullptr));
    hand.add_module("self_attn", spec);
    const std::string output = kLayer + "self_attn.o_proj.";
    hand.parameters[output + "lora_A.default.weight"] = cut(1);
    hand.parameters[output + "lora_B.default.weight"] = whole();
    // Head s mod 2, replica s div 2: rank 0 holds query heads 0 1 4 5, rank 1 holds 2 3 6 7.
    const TempDir temp;
    hand.write(temp / "in", "default",
               {TensorMap{{output + "lora_A.weight", bytes({1, 8}, "aAbBeEfF")},
                          {output + "lora_B.weight", bytes({1, 1}, "b")}},
                TensorMap{{output + "lora_A.weight", bytes({1, 8}, "cCdDgGhH")},
                          {output + "lora_B.weight", bytes({1, 1}, "b")}}});
    CHECK(consolidated(temp) == TensorMap{{output + "lora_A.weight", bytes({1, 16}, "aAbBcCdDeEfFgGhH")},
                                          {output + "lora_B.weight", bytes({1, 1}, "b")}});
  }
}

}  // namespace
}  // namespace reshard::test
