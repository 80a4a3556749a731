#include "reshard/specs/stages/stage_json.h"

#include <algorithm>
#include <random>

#include "reshard/base/json.h"
#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "support/files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const char* const kName = "mp_metadata_pp_rank_0.json";

Json valid() {
  return Json::parse(R"({
    "parameters": {
      "a.weight": {"tensor_model_parallel": true, "partition_dim": 1, "partition_stride": 2, "num_partitions": 4},
      "norm.weight": {"tensor_model_parallel": false}},
    "model_weight_transformation_specs": [
      {"module_fully_qualified_name": "l.0", "specs": [
        ["FusedLinearsSpec", {"fused_linear_name": "gate_up_proj", "linear_names": ["gate_proj", "up_proj"],
          "bias": true, "fuse_axis": 0, "original_dims": [48, 96], "tp_size": 4, "peft_type": null}],
        ["GQAQKVColumnParallelLinearSpec", {"gqa_qkv_projection_name": "qkv_proj", "query_projection_name": "q_proj",
          "key_projection_name": "k_proj", "value_projection_name": "v_proj", "output_projection_name": "o_proj",
          "num_attention_heads": 8, "num_key_value_heads": 2, "kv_size_multiplier": 2,
          "q_output_size_per_partition": 16, "kv_output_size_per_partition": 8, "fuse_qkv": true, "bias": false,
          "tp_size": 4, "peft_type": null}]]},
      {"module_fully_qualified_name": "l.1", "specs": []}]})");
}

StageMetadata read(const std::string& text) {
  MemoryFiles files;
  files.write(kName, text);
  return read_metadata(files, kName);
}

const std::string kParameter = "/parameters/a.weight";
const std::string kModules = "/model_weight_transformation_specs";
const std::string kFused = kModules + "/0/specs/0/1";
const std::string kGqa = kModules + "/0/specs/1/1";

/// A JSON pointer and the value that stands there instead, as text; empty: none does.
using Patch = std::pair<std::string, std::string>;

void check_patches(const std::vector<std::pair<Patch, Texts>>& rows, ErrorKind kind = ErrorKind::kBadInput) {
  const auto read_patched = [](const Patch& patch) {
    Json json = valid();
    const Json::json_pointer place(patch.first);
    if (patch.second.empty())
      json.at(place.parent_pointer()).erase(place.back());
    else
      json[place] = Json::parse(patch.second);
    read(json.dump());
  };
  check_each_refused<Patch>(read_patched, {.kind = kind, .path = kName}, rows);
}

TEST_CASE("Where experts are is said by our keys, and no other word for it is taken for nothing") {
  const auto with = [](const std::string& more) {
    return R"({"tensor_model_parallel": true, "partition_stride": 2, "num_partitions": 4, "expert_model_parallel": true,
              "partition_dim": )" +
           more + "}";
  };
  const auto parameter = [&](const std::string& more) {
    Json json = valid();
    json["parameters"]["a.weight"] = Json::parse(with(more));
    return read(json.dump()).parameters[0];
  };
  CHECK(parameter(R"(1, "expert_rank": 3)").expert_rank == 3);
  CHECK(parameter(R"(1, "expert_partitions": 2)").expert_partitions == 2);
  check_patches({{{kParameter, with("1")}, "the distribution is not recorded"}}, ErrorKind::kUnsupported);
  check_patches(
      {{{kParameter, with(R"(1, "expert_rank": 3, "expert_partitions": 2)")}, "a single expert is on one rank"},
       {{kParameter, with(R"(0, "expert_partitions": 4)")}, "divides the 2 matrices"}});
}

TEST_CASE("A metadata file gives its parameters and specs") {
  const StageMetadata metadata = read(valid().dump());
  CHECK(metadata.parameters == std::vector<ParallelParameter>{{"a.weight", true, 1, 2, 4}, {"norm.weight", false}});
  REQUIRE(metadata.modules.size() == 2);
  CHECK(metadata.modules[0].module_fully_qualified_name == "l.0");
  REQUIRE(metadata.modules[0].specs.size() == 2);
  CHECK(std::get<FusedLinearsSpec>(metadata.modules[0].specs[0]) ==
        FusedLinearsSpec{"gate_up_proj", {"gate_proj", "up_proj"}, true, 0, {48, 96}, 4});
  CHECK(std::get<GQAQKVColumnParallelLinearSpec>(metadata.modules[0].specs[1]) ==
        GQAQKVColumnParallelLinearSpec{"qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", 8, 2, 2, 16, 8, true, false,
                                       4});
  CHECK(metadata.modules[1].specs.empty());
}

TEST_CASE("The axis of a fused linear may be a word, and adapters may go unmentioned") {
  Json json = valid();
  json[Json::json_pointer(kFused + "/bias")] = false;
  for (const auto& [word, axis] : {std::pair{"\"column\"", 0u}, {"\"row\"", 1u}, {"1", 1u}}) {
    json[Json::json_pointer(kFused + "/fuse_axis")] = Json::parse(word);
    json[Json::json_pointer(kFused)].erase("peft_type");
    CHECK(std::get<FusedLinearsSpec>(read(json.dump()).modules[0].specs[0]).fuse_axis == axis);
  }
}

TEST_CASE("A metadata file that is missing, broken or repeats a parameter is refused") {
  MemoryFiles files;
  check_refused([&] { read_metadata(files, kName); }, {.path = kName});
  check_each_refused(read, {.path = kName},
                     {{"{\"parameters\":", "not valid JSON"},
                      {"[]", "expected an object"},
                      {R"({"parameters":{"a":{},"a":{}}})", "the key \"a\" twice"}});
}

TEST_CASE("The two parts of a metadata file must be there with their types") {
  check_patches({{{"/parameters", ""}, "the key \"parameters\" is missing"},
                 {{"/parameters", "[]"}, "\"parameters\" is [], expected an object"},
                 {{kModules, ""}, "the key \"model_weight_transformation_specs\" is missing"},
                 {{kModules, "{}"}, "expected an array"},
                 {{kModules + "/0", "[]"}, "model_weight_transformation_specs is []"},
                 {{kModules + "/0/module_fully_qualified_name", ""}, "is missing"},
                 {{kModules + "/0/specs", ""}, "the key \"specs\" is missing"},
                 {{kModules + "/0/specs", "{}"}, "\"specs\" is an object, expected an array"}});
}

TEST_CASE("A parameter whose numbers make no sense is refused by name") {
  const std::pair<std::string, std::vector<const char*>> bad[] = {
      {"tensor_model_parallel", {"", "1", "null", "\"true\""}},
      {"partition_dim", {"", "8", "-1", "0.0", "\"0\"", "null", "4294967296"}},
      {"partition_stride", {"", "0", "-1", "4097", "4294967297"}},
      {"num_partitions", {"", "0", "-4", "4097", "4294967300"}},
  };
  for (const auto& [key, values] : bad)
    for (const char* value : values)
      check_patches({{{kParameter + "/" + key, value}, {"parameters: a.weight: ", "\"" + key + "\" is "}}});
  check_patches({{{kParameter, "7"}, "parameters: a.weight is 7, expected an object"}});
}

TEST_CASE("A spec that is not a kind and an object is refused") {
  const std::string spec = kModules + "/0/specs/0";
  for (const char* value : {"7", "[]", "[\"FusedLinearsSpec\"]", "[\"FusedLinearsSpec\", {}, 7]", "[7, {}]", "{}"})
    check_patches({{{spec, value}, "l.0: a spec is "}});
  check_patches({{{spec, "[\"FusedLinearsSpec\", 7]"}, "l.0: FusedLinearsSpec is 7"}});
  check_patches({{{spec, R"(["LoRASpec\n", {}])"}, "l.0: the transformation spec LoRASpec\\x0a is not known"}},
                ErrorKind::kUnsupported);
}

TEST_CASE("Every key of a spec must be there with its type") {
  const Json json = valid();
  std::size_t keys = 0;
  for (const std::string& place : {kFused, kGqa})
    for (const auto& [key, value] : json[Json::json_pointer(place)].items()) {
      if (key == "peft_type") continue;
      check_patches({{{place + "/" + key, ""}, "the key \"" + key + "\" is missing"},
                     {{place + "/" + key, "-1"}, "\"" + key + "\" is -1, expected"},
                     {{place + "/" + key, "null"}, "l.0: "}});
      ++keys;
    }
  CHECK(keys == 6 + 13);
}

TEST_CASE("A fused linear whose parts contradict each other is refused") {
  check_patches({{{kFused + "/linear_names", "[\"gate_proj\"]"}, "1 linear_names and 2 original_dims"},
                 {{kFused + "/original_dims", "[48, 96, 4]"}, "2 linear_names and 3 original_dims"},
                 {{kFused + "/linear_names", "[\"gate_proj\", 7]"}, "an array of strings"},
                 {{kFused + "/original_dims", "[48, -96]"}, "an array of sizes"},
                 {{kFused + "/original_dims", "[48, 96.0]"}, "an array of sizes"},
                 {{kFused + "/original_dims", "[48, 98]"}, "a size of 98, which 4 ranks do not divide"},
                 {{kFused + "/tp_size", "0"}, "\"tp_size\" is 0, expected a number from 1 to 4096"},
                 {{kFused + "/tp_size", "4097"}, "\"tp_size\" is 4097"},
                 {{kFused + "/fuse_axis", "2"}, "\"fuse_axis\" is 2, expected a number from 0 to 1"},
                 {{kFused + "/fuse_axis", "\"diagonal\""}, "\"fuse_axis\" is \"diagonal\""}});
  check_patches({{{kFused + "/fuse_axis", "1"}, "fused along rows and has a bias"}}, ErrorKind::kUnsupported);
  Json none = valid();
  none[Json::json_pointer(kFused + "/linear_names")] = none[Json::json_pointer(kFused + "/original_dims")] =
      Json::array();
  check_refused([&] { read(none.dump()); }, {.says = "gate_up_proj has 0 linear_names"});
}

TEST_CASE("Attention whose heads cannot be placed, or whose rows do not fit them, is refused with the reason") {
  check_patches({{{kGqa + "/num_key_value_heads", "3"}, "do not fall into groups"},
                 {{kGqa + "/kv_size_multiplier", "3"}, "the TP degree 4 is not a multiple of 3"},
                 {{kGqa + "/kv_size_multiplier", "1"}, "2 slots, which do not divide over 4 ranks"},
                 {{kGqa + "/num_attention_heads", "6"}, "do not divide over its 2 copies"}});
  for (const std::string key : {"num_attention_heads", "num_key_value_heads", "kv_size_multiplier", "tp_size"})
    for (const std::string value : {"0", "4294967296", "18446744073709551615"})
      check_patches({{{kGqa + "/" + key, value}, "\"" + key + "\" is " + value}});
  for (const std::string rows : {"15", "8", "18446744073709551614"})
    check_patches({{{kGqa + "/q_output_size_per_partition", rows},
                    "contradicts itself: a rank has 2 query heads in " + rows + " rows"}});
  for (const std::string rows : {"0", "7", "16", "18446744073709551615"})
    check_patches({{{kGqa + "/kv_output_size_per_partition", rows}, "1 key/value heads in " + rows + " rows"}});
  Json json = valid();
  for (const char* letter : {"q", "kv"})
    json[Json::json_pointer(kGqa + "/" + letter + "_output_size_per_partition")] = 0;
  check_refused([&] { read(json.dump()); }, {.path = kName, .says = "qkv_proj"});
}

TEST_CASE("Adapters other than LoRA's are unsupported, not damaged") {
  for (const std::string& place : {kFused, kGqa}) {
    check_patches({{{place + "/peft_type", "\"IA3\""}, "(peft_type \"IA3\")"}}, ErrorKind::kUnsupported);
    Json json = valid();
    json[Json::json_pointer(place + "/peft_type")] = 7;
    CHECK(check_refused([&] { read(json.dump()); }, {.kind = ErrorKind::kUnsupported}).hint().empty());
  }
}

StageMetadata random_metadata(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t least, std::uint64_t most) {
    return static_cast<std::uint32_t>(least + random() % (most - least + 1));
  };
  StageMetadata metadata;
  for (std::uint32_t i = 0; i < pick(0, 6); ++i) {
    const std::string name = std::to_string(i) + (pick(0, 1) ? ".weight" : ".\"é\\");
    if (pick(0, 1))
      metadata.parameters.push_back({name, true, pick(0, 1), pick(1, 3), pick(1, 64)});
    else
      metadata.parameters.push_back({name});
  }
  for (std::uint32_t i = 0; i < pick(0, 4); ++i) {
    ModuleSpecs module{"m." + std::to_string(i), {}};
    const std::uint32_t tp = pick(1, 8);
    if (pick(0, 1)) {
      const bool row = pick(0, 1) == 1;
      module.specs.emplace_back(FusedLinearsSpec{
          "f", {"x", "y"}, !row && pick(0, 1), row, {tp * 3ull, tp * 5ull}, tp, pick(0, 1) ? kLoraPeftType : ""});
    }
    if (pick(0, 1)) {
      const std::uint32_t kv = tp * pick(1, 2), group = pick(1, 4);
      const std::uint64_t dim = pick(1, 8);
      module.specs.emplace_back(GQAQKVColumnParallelLinearSpec{"qkv", "q", "k", "v", "o", kv * group, kv, 1,
                                                               kv * group / tp * dim, kv / tp * dim, pick(0, 1) == 1,
                                                               pick(0, 1) == 1, tp, pick(0, 1) ? kLoraPeftType : ""});
    }
    metadata.modules.push_back(module);
  }
  return metadata;
}

TEST_CASE("Metadata that is written is read back the same") {
  std::size_t specs = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const StageMetadata metadata = random_metadata(random);
    CHECK(read(metadata_text(metadata)) == metadata);
    for (const ModuleSpecs& module : metadata.modules) specs += module.specs.size();
  }
  CHECK(specs > 100);
}

TEST_CASE("The reference's metadata is read, and written again with the same content") {
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testdata("golden"))) {
    if (!metadata_pp_rank(entry.path().filename().string())) continue;
    INFO(entry.path().string());
    const StageMetadata metadata = read_metadata(local_storage(), entry.path());
    CHECK(Json::parse(metadata_text(metadata)) == Json::parse(read_file(entry.path())));
    CHECK(std::is_sorted(metadata.parameters.begin(), metadata.parameters.end(),
                         [](const auto& a, const auto& b) { return a.name < b.name; }));
    ++files;
  }
  CHECK(files >= 14 + 5);
}

TEST_CASE("A metadata file's name holds its pipeline rank without zeros in front") {
  CHECK(metadata_file_name(0) == "mp_metadata_pp_rank_0.json");
  CHECK(metadata_file_name(12) == "mp_metadata_pp_rank_12.json");
  for (const std::uint32_t rank : {0u, 7u, 12u, 4095u}) CHECK(metadata_pp_rank(metadata_file_name(rank)) == rank);
  CHECK(metadata_pp_rank("mp_metadata_pp_rank_7.pt") == 7);  // as older ones are named
  for (const char* name :
       {"", "mp_metadata_pp_rank_", "mp_metadata_pp_rank_.json", ".json", "mp_metadata_pp_rank_-1.json",
        "mp_metadata_pp_rank_4096.json", "mp_metadata_pp_rank_4294967296.json", "mp_metadata_pp_rank_1.bin",
        "mp_metadata_pp_rank_1.json.bak", "x_mp_metadata_pp_rank_1.json", "mp_metadata_pp_rank_1x.json",
        "mp_metadata_pp_rank_ 1.json", "mp_metadata_pp_rank_1"}) {
    INFO(name);
    CHECK_FALSE(metadata_pp_rank(name));
  }
}

}  // namespace
}  // namespace reshard::test
