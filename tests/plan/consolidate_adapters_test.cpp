// Sharded adapters made by hand: what the reference loses or refuses, what cannot be consolidated, and where adapters go.

#include <array>
#include <nlohmann/json.hpp>

#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kLayer = "base_model.model.model.layers.0.";

json whole() {
  return {{"tensor_model_parallel", false}};
}
json cut(std::uint32_t dim, std::uint32_t stride = 1) {
  return {{"tensor_model_parallel", true}, {"partition_dim", dim}, {"partition_stride", stride}, {"num_partitions", 2}};
}
json fused_spec(const json& peft_type = "lora", std::uint32_t axis = 0) {
  return {"FusedLinearsSpec",
          {{"fused_linear_name", "gate_up_proj"},
           {"linear_names", {"gate_proj", "up_proj"}},
           {"bias", false},
           {"fuse_axis", axis},
           {"original_dims", {4, 8}},
           {"tp_size", 2},
           {"peft_type", peft_type}}};
}
json gqa_spec(const json& peft_type = nullptr,
              bool fuse_qkv = false) {  // 4 query heads on 1 key/value head, of 2
  return {"GQAQKVColumnParallelLinearSpec",
          {{"gqa_qkv_projection_name", "qkv_proj"},
           {"query_projection_name", "q_proj"},
           {"key_projection_name", "k_proj"},
           {"value_projection_name", "v_proj"},
           {"output_projection_name", "o_proj"},
           {"num_attention_heads", 8},
           {"num_key_value_heads", 2},
           {"kv_size_multiplier", 2},
           {"q_output_size_per_partition", 8},
           {"kv_output_size_per_partition", 4},
           {"fuse_qkv", fuse_qkv},
           {"bias", false},
           {"tp_size", 2},
           {"peft_type", peft_type}}};
}

/// A checkpoint of adapters on two ranks, with metadata as one writes it down.
struct HandMade {
  json parameters = json::object();
  json modules = json::array();

  void add_module(const std::string& name, const json& spec) {
    modules.push_back({{"module_fully_qualified_name", kLayer + name}, {"specs", json::array({spec})}});
  }
  /// The base layers that the specs of `mlp` and `self_attn` speak of.
  void add_base() {
    parameters[kLayer + "mlp.gate_up_proj.base_layer.weight"] = cut(0, 2);
    for (const char* letter : {"q", "k", "v"}) parameters[kLayer + "self_attn.qkv_proj.weight_" + letter] = cut(0);
    parameters[kLayer + "self_attn.o_proj.base_layer.weight"] = cut(1);
  }
  void write(const std::filesystem::path& checkpoint, const std::string& adapter,
             const std::array<TensorMap, 2>& ranks) const {
    const std::filesystem::path shards = checkpoint / ("adapter_" + adapter) / "adapter_shards";
    for (int rank : {0, 1})
      write_torch(shards / "model" / ("dp_rank_00_tp_rank_0" + std::to_string(rank) + "_pp_rank_00.pt"), ranks[rank]);
    write_file(shards / "mp_metadata_pp_rank_0.json",
               json{{"parameters", parameters}, {"model_weight_transformation_specs", modules}}.dump());
    write_file(shards / "../adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
  }
};

/// Bytes `values`, as U8.
TensorData bytes(const Dims& shape, const std::string& values) {
  return {DType::kU8, shape, values};
}

TensorMap back(const TempDir& temp, const fs::path& adapter = {}) {
  consolidate(consolidate_request(temp / "in", temp / "out"));
  return read_tensors(temp / "out" / adapter / "adapter_model.safetensors");
}

void check_unplanned(const TempDir& temp, const Request& request, const Refusal& refusal) {
  const auto before = snapshot(temp.path());
  check_refused([&] { plan_consolidate(request); }, refusal);
  CHECK((snapshot(temp.path()) == before));
}

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
  const auto letter = [](std::size_t i) { return static_cast<char>('A' + i); };
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto rank = [b = bytes({1, 1}, {letter(i)})](const char* a) {
      return TensorMap{{"m.lora_A.weight", bytes({1, 1}, a)}, {"m.lora_B.weight", b}, {"head.weight", b}};
    };
    hand.write(temp / "in", names[i], {rank("0"), rank("1")});
  }
  consolidate(consolidate_request(temp / "in", temp / "out"));
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    const fs::path folder = names[i] == "default" ? temp / "out" : temp / "out" / names[i];
    CHECK(read_tensors(folder / "adapter_model.safetensors") ==
          TensorMap{{"m.lora_A.weight", bytes({1, 2}, "01")},
                    {"m.lora_B.weight", bytes({1, 1}, {letter(i)})},
                    {"head.weight", bytes({2, 1}, std::string(2, letter(i)))}});
    CHECK(fs::exists(folder / "adapter_config.json"));
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
  hand.parameters["embed.lora_embedding_B.default"] = whole();
  hand.parameters["embed.base_layer.weight"] = cut(0);
  hand.parameters["head.modules_to_save.default.weight"] = cut(0);
  hand.parameters["frozen.lora_A.default.weight"] = whole();
  TensorMap rank{
      {fused + "lora_A.weight", bytes({1, 2}, "ab")},   {fused + "lora_B.weight", bytes({6, 1}, "001111")},
      {fused + "lora_B.bias", bytes({6}, "223333")},    {fused + "lora_magnitude_vector", bytes({6}, "445555")},
      {"embed.lora_embedding_A", bytes({1, 3}, "xyz")}, {"embed.lora_embedding_B", bytes({2, 1}, "vw")},
      {"embed.base_layer.weight", bytes({1, 1}, "e")},  {"head.weight", bytes({1, 2}, "hi")}};
  TensorMap other = rank;
  other[fused + "lora_B.weight"].bytes = "667777";
  const TempDir temp;
  hand.write(temp / "in", "default", {rank, other});
  const auto job = plan_consolidate(consolidate_request(temp / "in", temp / "out"));
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes[0], Says("left out: frozen.lora_A.weight"));
  const std::string mlp = kLayer + "mlp.";
  CHECK(back(temp) == TensorMap{{mlp + "gate_proj.lora_A.weight", bytes({1, 2}, "ab")},
                                {mlp + "up_proj.lora_A.weight", bytes({1, 2}, "ab")},
                                {mlp + "gate_proj.lora_B.weight", bytes({4, 1}, "0066")},
                                {mlp + "up_proj.lora_B.weight", bytes({8, 1}, "11117777")},
                                {mlp + "gate_proj.lora_B.bias", bytes({4}, "2222")},
                                {mlp + "up_proj.lora_B.bias", bytes({8}, "33333333")},
                                {mlp + "gate_proj.lora_magnitude_vector", bytes({4}, "4444")},
                                {mlp + "up_proj.lora_magnitude_vector", bytes({8}, "55555555")},
                                {"embed.lora_embedding_A", bytes({1, 3}, "xyz")},
                                {"embed.lora_embedding_B", bytes({2, 1}, "vw")},
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
  CHECK(back(temp, "x") == TensorMap{{kLayer + "mlp.gate_proj.lora_A.weight", bytes({1, 4}, "0022")},
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
    CHECK(back(temp) == TensorMap{{output + "lora_A.weight", bytes({1, 16}, "aAbBcCdDeEfFgGhH")},
                                  {output + "lora_B.weight", bytes({1, 1}, "b")}});
  }
}

TEST_CASE("A tensor that the metadata does not explain is an error that names it, and never lost") {
  const std::string fused = kLayer + "mlp.gate_up_proj.", qkv = kLayer + "self_attn.qkv_proj.";
  struct Row {
    std::string in_metadata;
    json entry;
    std::string in_files;
    TensorData tensor;
    Refusal refusal;
  };
  const std::string magnitude = "lora_magnitude_vector", unlisted = "is in the file, but not listed in";
  const TensorData vector = bytes({6}, "445555"), one = bytes({1}, "4");
  const Row rows[] = {{"", {}, "head.weight", one, {.says = unlisted}},
                      {"head.modules_to_save.default2.weight", cut(0), "head.weight", one, {.says = unlisted}},
                      {fused + magnitude + ".default.weight",
                       whole(),
                       fused + magnitude,
                       vector,
                       {.says = "contradicts its transformation spec"}},
                      {qkv + magnitude + ".default.weight",
                       cut(0),
                       qkv + magnitude,
                       vector,
                       {.kind = ErrorKind::kUnsupported, .says = "belongs to a fused linear"}},
                      {"m." + magnitude + ".default.weight",
                       whole(),
                       "m." + magnitude,
                       one,
                       {.says = "does not fit its lora_B of [2, 1]"}},
                      {"m.lora_B.default.bias", whole(), "m.lora_B.bias", one, {.says = "does not fit its lora_B"}},
                      {"m.lora_A.default.weight",
                       whole(),
                       "m.lora_A.weight",
                       bytes({2, 1}, "45"),
                       {.says = "does not fit its lora_B"}}};
  for (const Row& row : rows) {
    HandMade hand;
    hand.add_base();
    hand.add_module("mlp", fused_spec());
    hand.add_module("self_attn", gqa_spec("lora"));
    hand.parameters[fused + "lora_A.default.weight"] = whole();
    hand.parameters[fused + "lora_B.default.weight"] = cut(0, 2);
    hand.parameters["m.lora_B.default.weight"] = cut(0);
    if (!row.in_metadata.empty()) hand.parameters[row.in_metadata] = row.entry;
    const TensorMap rank{{fused + "lora_A.weight", bytes({1, 2}, "ab")},
                         {fused + "lora_B.weight", bytes({6, 1}, "001111")},
                         {"m.lora_B.weight", bytes({1, 1}, "0")},
                         {row.in_files, row.tensor}};
    const TempDir temp;
    hand.write(temp / "in", "default", {rank, rank});
    check_unplanned(temp, consolidate_request(temp / "in", temp / "out"),
                    with_common(row.refusal, {.tensor = row.in_files}));
  }
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
  CHECK(back(temp, "renamed").size() == 2);
  HandMade two;
  for (const char* name : {"first", "second"}) two.parameters["m.lora_A." + std::string(name) + ".weight"] = cut(1);
  two.write(temp / "in", "renamed", {TensorMap{{"m.lora_A.weight", bytes({1, 1}, "0")}}, {}});
  check_unplanned(temp, consolidate_request(temp / "in", temp / "out2"),
                  {.says = "\"renamed\", but the metadata lists first, second"});
}

TEST_CASE("An adapter without its metadata, with a rank missing, or with ranks that differ is refused") {
  const TempDir temp;
  write_small(temp / "in", "default", "default");
  const fs::path shards = temp / "in/adapter_default/adapter_shards";
  const fs::path last = shards / "model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  write_torch(last, {{"m.lora_A.weight", bytes({1, 1}, "1")}, {"m.lora_B.weight", bytes({1, 1}, "x")}});
  const Request request = consolidate_request(temp / "in", temp / "out");
  check_refused([&] { consolidate(request); }, {.says = "is a replica of m.lora_B.weight"});
  fs::remove(last);
  check_unplanned(temp, request, {.says = "dp_rank_00_tp_rank_01_pp_rank_00"});
  fs::rename(shards / "mp_metadata_pp_rank_0.json", shards / "mp_metadata_pp_rank_0.pt");
  check_unplanned(temp, request, {.kind = ErrorKind::kUnsupported});
  fs::remove(shards / "mp_metadata_pp_rank_0.pt");
  check_unplanned(temp, request, {.says = "no metadata for adapters"});
}

TEST_CASE("Adapters go beside their shards unless told otherwise, and never over or into them") {
  const TempDir temp;
  write_small(temp / "in", "default", "default");
  write_small(temp / "in", "x", "x");
  Request in_place;
  in_place.source.path = temp / "in";
  consolidate(in_place);
  CHECK(read_tensors(temp / "in/adapter_model.safetensors").size() == 2);
  CHECK(read_tensors(temp / "in/x/adapter_model.safetensors").size() == 2);
  CHECK(fs::exists(temp / "in/x/adapter_config.json"));
  in_place.source.path = temp / "in/adapter_x/adapter_shards";
  consolidate(in_place);
  CHECK(read_tensors(temp / "in/adapter_x/adapter_model.safetensors").size() == 2);
  for (const char* inside : {"in/adapter_x/adapter_shards", "in/adapter_x/adapter_shards/model/deep"})
    check_unplanned(temp, consolidate_request(temp / "in", temp / inside), {.kind = ErrorKind::kUsage});
  in_place.source.path = temp / "in";
  in_place.target.format = Format::kPytorch;
  in_place.force = true;
  check_unplanned(temp, in_place, {.says = "adapter_model.safetensors"});
}

TEST_CASE("An adapter whose adapter_config.json is missing or damaged is refused, as PEFT would not load it") {
  const TempDir temp;
  write_small(temp / "in", "default", "default");
  const fs::path adapter = temp / "in/adapter_default", config = adapter / "adapter_config.json";
  for (const fs::path& source : {temp / "in", adapter}) {
    const Request request = consolidate_request(source, temp / "out");
    write_file(config, "{\"peft_type\": \"LORA\",\n \"r\": }");
    check_unplanned(temp, request, {.path = config, .says = "at byte 28"});
    write_file(config, R"({"peft_type": "LORA", "r": "many"})");
    check_unplanned(temp, request, {.path = config, .says = "\"r\" is \"many\""});
    fs::remove(config);
    check_unplanned(temp, request, {.path = adapter, .says = "contains no adapter_config.json", .hint = "PEFT"});
  }
  write_file(config, R"({"peft_type": "IA3"})");  // which the files may be, for all that is known
  const auto job = plan_consolidate(consolidate_request(temp / "in", temp / "out"));
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes[0], Says("only LORA is supported"));
}

TEST_CASE("Adapters are cast as models are, and the tensors of a single one chosen and renamed") {
  const TempDir temp;
  HandMade hand;
  for (const char* name : {"m.lora_A.x.weight", "m.lora_B.x.weight", "o.lora_A.x.weight", "o.lora_B.x.weight"})
    hand.parameters[name] = whole();
  const TensorData one{DType::kF32, {1, 1}, std::string("\0\0\x80\x3f", 4)};
  const TensorMap rank{
      {"m.lora_A.weight", one}, {"m.lora_B.weight", one}, {"o.lora_A.weight", one}, {"o.lora_B.weight", one}};
  hand.write(temp / "in", "x", {rank, rank});
  Request request = consolidate_request(temp / "in", temp / "out");
  request.dtype = DType::kBF16;
  consolidate(request);
  const TensorData half{DType::kBF16, {1, 1}, "\x80\x3f"};
  CHECK(read_tensors(temp / "out/x/adapter_model.safetensors") == TensorMap{{"m.lora_A.weight", half},
                                                                            {"m.lora_B.weight", half},
                                                                            {"o.lora_A.weight", half},
                                                                            {"o.lora_B.weight", half}});
  request.names.drop.emplace_back("drop", "^o");
  request.names.renames.push_back(parse_rename("rename", "^m=n"));
  request.output_directory = temp / "out2";
  check_unplanned(temp, request, {.kind = ErrorKind::kUsage, .hint = "the directory of one adapter"});
  request.source.path = temp / "in/adapter_x";
  consolidate(request);
  CHECK(read_tensors(temp / "out2/adapter_model.safetensors") ==
        TensorMap{{"n.lora_A.weight", half}, {"n.lora_B.weight", half}});
}

TEST_CASE("A rank file of an adapter that is a link to outside of the checkpoint is refused, as a model's is") {
  const TempDir temp;
  write_small(temp / "in", "x", "x");
  const fs::path rank = temp / "in/adapter_x/adapter_shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  fs::rename(rank, temp / "elsewhere.pt");
  fs::create_symlink(temp / "elsewhere.pt", rank);
  for (const char* source : {"in", "in/adapter_x"})
    check_unplanned(temp, consolidate_request(temp / source, temp / "out"),
                    {.path = rank, .says = "is a link out of the checkpoint"});
}

TEST_CASE("A tensor that another adapter's would be taken for is refused") {
  const TempDir temp;
  write_small(temp / "in", "x", "x");
  HandMade hand;
  hand.parameters["x/m.lora_A.default.weight"] = whole();
  hand.parameters["x/m.lora_B.default.weight"] = whole();
  const TensorMap rank{{"x/m.lora_A.weight", bytes({1, 1}, "0")}, {"x/m.lora_B.weight", bytes({1, 1}, "1")}};
  hand.write(temp / "in", "default", {rank, rank});
  check_unplanned(temp, consolidate_request(temp / "in", temp / "out"), {.tensor = "x/m.lora_A.weight"});
  CHECK(plan_consolidate(consolidate_request(temp / "in/adapter_default", temp / "out"))->source.logical.size() == 2);
}

TEST_CASE("An adapter that could leave the output directory by its name is refused") {
  const TempDir temp;
  for (const char* name : {"..", ".", ""}) {
    INFO(name);
    const fs::path checkpoint = temp / (std::string("in") + name + "x");
    write_small(checkpoint, name, "a");
    check_unplanned(temp, consolidate_request(checkpoint, temp / "out"), {});
  }
}

TEST_CASE("Adapters beside a model are left, and this is said") {
  const TempDir temp;
  Random random(3);
  write_model(temp / "model", {}, random_tensors({}, random));
  shard(temp / "model", temp / "in", {.tp = 2});
  write_small(temp / "in", "x", "x");
  const auto job = plan_consolidate(consolidate_request(temp / "in", temp / "out"));
  REQUIRE(job->notes.size() == 2);
  CHECK_THAT(job->notes[0], Says("adapter_x"));
  CHECK_THAT(job->notes[1], Says("there is no tokenizer next to the weights"));
  CHECK(job->family == "llama");
  CHECK(plan_consolidate(consolidate_request(temp / "in/adapter_x", temp / "out"))->source.logical.size() == 2);
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
  check_unplanned(temp, consolidate_request(temp / "in", temp / "out"), {.kind = ErrorKind::kUnsupported});
}

}  // namespace
}  // namespace reshard::test
