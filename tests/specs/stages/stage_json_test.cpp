#include "reshard/specs/stages/stage_json.h"

#include <algorithm>
#include <random>

#include "reshard/base/json.h"
#include "reshard/specs/parallel/mesh.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

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
  const TempDir dir;
  write_file(dir / kName, text);
  return read_metadata(dir / kName);
}

Error refused(const std::string& text, ErrorKind kind = ErrorKind::kBadInput) {
  const TempDir dir;
  write_file(dir / kName, text);
  return check_refused([&] { read_metadata(dir / kName); }, {.kind = kind, .path = dir / kName});
}

const std::string kParameter = "/parameters/a.weight";
const std::string kModules = "/model_weight_transformation_specs";
const std::string kFused = kModules + "/0/specs/0/1";
const std::string kGqa = kModules + "/0/specs/1/1";

/// The error for the valid file with the value at `pointer` replaced, or removed where `value` is empty.
Error patched(const std::string& pointer, const std::string& value, ErrorKind kind = ErrorKind::kBadInput) {
  INFO(pointer << " = " << value);
  Json json = valid();
  const Json::json_pointer place(pointer);
  if (value.empty())
    json.at(place.parent_pointer()).erase(place.back());
  else
    json[place] = Json::parse(value);
  return refused(json.dump(), kind);
}

TEST_CASE("Where experts are is said by our keys, and no other word for it is taken for nothing") {
  Json json = valid();
  Json& a = json["parameters"]["a.weight"];
  a["expert_model_parallel"] = true;
  CHECK_THAT(refused(json.dump(), ErrorKind::kUnsupported).what(), Says("nothing says how"));
  a["expert_rank"] = 3;
  CHECK(read(json.dump()).parameters[0].expert_rank == 3);
  a["expert_partitions"] = 2;
  CHECK_THAT(refused(json.dump(), ErrorKind::kBadInput).what(), Says("a single expert is on one rank"));
  a.erase("expert_rank");
  CHECK(read(json.dump()).parameters[0].expert_partitions == 2);
  a["partition_dim"] = 0;  // with a stride of 2
  a["expert_partitions"] = 4;
  CHECK_THAT(refused(json.dump(), ErrorKind::kBadInput).what(), Says("divides the 2 matrices"));
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
  const TempDir dir;
  check_refused([&] { read_metadata(dir / kName); }, {.path = dir / kName});
  CHECK_THAT(refused("{\"parameters\":").what(), Says("not valid JSON"));
  CHECK_THAT(refused("[]").what(), Says("expected an object"));
  CHECK_THAT(refused(R"({"parameters":{"a":{},"a":{}}})").what(), Says("the key \"a\" twice"));
}

TEST_CASE("The two parts of a metadata file must be there with their types") {
  CHECK_THAT(patched("/parameters", "").what(), Says("the key \"parameters\" is missing"));
  CHECK_THAT(patched("/parameters", "[]").what(), Says("\"parameters\" is [], expected an object"));
  CHECK_THAT(patched(kModules, "").what(), Says("the key \"model_weight_transformation_specs\" is missing"));
  CHECK_THAT(patched(kModules, "{}").what(), Says("expected an array"));
  CHECK_THAT(patched(kModules + "/0", "[]").what(), Says("model_weight_transformation_specs is []"));
  CHECK_THAT(patched(kModules + "/0/module_fully_qualified_name", "").what(), Says("is missing"));
  CHECK_THAT(patched(kModules + "/0/specs", "").what(), Says("the key \"specs\" is missing"));
  CHECK_THAT(patched(kModules + "/0/specs", "{}").what(), Says("\"specs\" is an object, expected an array"));
}

TEST_CASE("A parameter whose numbers make no sense is refused by name") {
  const std::pair<const char*, std::vector<const char*>> bad[] = {
      {"tensor_model_parallel", {"", "1", "null", "\"true\""}},
      {"partition_dim", {"", "8", "-1", "0.0", "\"0\"", "null", "4294967296"}},
      {"partition_stride", {"", "0", "-1", "4097", "4294967297"}},
      {"num_partitions", {"", "0", "-4", "4097", "4294967300"}},
  };
  for (const auto& [key, values] : bad)
    for (const char* value : values)
      check_error(patched(kParameter + "/" + key, value),
                  {.says = {"parameters: a.weight: ", "\"" + std::string(key) + "\" is "}});
  CHECK_THAT(patched(kParameter, "7").what(), Says("parameters: a.weight is 7, expected an object"));
}

TEST_CASE("A spec that is not a kind and an object is refused") {
  for (const char* spec : {"7", "[]", "[\"FusedLinearsSpec\"]", "[\"FusedLinearsSpec\", {}, 7]", "[7, {}]", "{}"})
    CHECK_THAT(patched(kModules + "/0/specs/0", spec).what(), Says("l.0: a spec is "));
  CHECK_THAT(patched(kModules + "/0/specs/0", "[\"FusedLinearsSpec\", 7]").what(), Says("l.0: FusedLinearsSpec is 7"));
  check_error(patched(kModules + "/0/specs/0", R"(["LoRASpec\n", {}])", ErrorKind::kUnsupported),
              {.kind = ErrorKind::kUnsupported, .says = "l.0: the transformation spec LoRASpec\\x0a is not known"});
}

TEST_CASE("Every key of a spec must be there with its type") {
  const Json json = valid();
  std::size_t keys = 0;
  for (const std::string& place : {kFused, kGqa})
    for (const auto& [key, value] : json[Json::json_pointer(place)].items()) {
      if (key == "peft_type") continue;
      CHECK_THAT(patched(place + "/" + key, "").what(), Says("the key \"" + key + "\" is missing"));
      CHECK_THAT(patched(place + "/" + key, "-1").what(), Says("\"" + key + "\" is -1, expected"));
      CHECK_THAT(patched(place + "/" + key, "null").what(), Says("l.0: "));
      ++keys;
    }
  CHECK(keys == 6 + 13);
}

TEST_CASE("A fused linear whose parts contradict each other is refused") {
  CHECK_THAT(patched(kFused + "/linear_names", "[\"gate_proj\"]").what(), Says("1 linear_names and 2 original_dims"));
  CHECK_THAT(patched(kFused + "/original_dims", "[48, 96, 4]").what(), Says("2 linear_names and 3 original_dims"));
  Json none = valid();
  none[Json::json_pointer(kFused + "/linear_names")] = none[Json::json_pointer(kFused + "/original_dims")] =
      Json::array();
  CHECK_THAT(refused(none.dump()).what(), Says("gate_up_proj has 0 linear_names"));
  CHECK_THAT(patched(kFused + "/linear_names", "[\"gate_proj\", 7]").what(), Says("an array of strings"));
  CHECK_THAT(patched(kFused + "/original_dims", "[48, -96]").what(), Says("an array of sizes"));
  CHECK_THAT(patched(kFused + "/original_dims", "[48, 96.0]").what(), Says("an array of sizes"));
  CHECK_THAT(patched(kFused + "/original_dims", "[48, 98]").what(), Says("a size of 98, which 4 ranks do not divide"));
  CHECK_THAT(patched(kFused + "/tp_size", "0").what(), Says("\"tp_size\" is 0, expected a number from 1 to 4096"));
  CHECK_THAT(patched(kFused + "/tp_size", "4097").what(), Says("\"tp_size\" is 4097"));
  CHECK_THAT(patched(kFused + "/fuse_axis", "2").what(), Says("\"fuse_axis\" is 2, expected a number from 0 to 1"));
  CHECK_THAT(patched(kFused + "/fuse_axis", "\"diagonal\"").what(), Says("\"fuse_axis\" is \"diagonal\""));
  CHECK_THAT(patched(kFused + "/fuse_axis", "1", ErrorKind::kUnsupported).what(),
             Says("fused along rows and has a bias"));
}

TEST_CASE("Attention whose heads cannot be placed is refused with the reason") {
  CHECK_THAT(patched(kGqa + "/num_key_value_heads", "3").what(), Says("do not fall into groups"));
  CHECK_THAT(patched(kGqa + "/kv_size_multiplier", "3").what(), Says("the TP degree 4 is not a multiple of 3"));
  CHECK_THAT(patched(kGqa + "/kv_size_multiplier", "1").what(), Says("2 slots, which do not divide over 4 ranks"));
  CHECK_THAT(patched(kGqa + "/num_attention_heads", "6").what(), Says("do not divide over its 2 copies"));
  for (const char* key : {"num_attention_heads", "num_key_value_heads", "kv_size_multiplier", "tp_size"})
    for (const char* value : {"0", "4294967296", "18446744073709551615"})
      CHECK_THAT(patched(kGqa + "/" + key, value).what(), Says("\"" + std::string(key) + "\" is " + value));
}

TEST_CASE("Attention whose rows do not fit its heads is refused with both") {
  for (const char* rows : {"15", "8", "18446744073709551614"})
    check_error(patched(kGqa + "/q_output_size_per_partition", rows),
                {.says = "contradicts itself: a rank has 2 query heads in " + std::string(rows) + " rows"});
  for (const char* rows : {"0", "7", "16", "18446744073709551615"})
    CHECK_THAT(patched(kGqa + "/kv_output_size_per_partition", rows).what(),
               Says("1 key/value heads in " + std::string(rows) + " rows"));
}

TEST_CASE("Attention whose heads have no rows is refused") {
  Json json = valid();
  json[Json::json_pointer(kGqa + "/q_output_size_per_partition")] = 0;
  json[Json::json_pointer(kGqa + "/kv_output_size_per_partition")] = 0;
  CHECK_THAT(refused(json.dump()).what(), Says("qkv_proj"));
}

TEST_CASE("Adapters other than LoRA's are unsupported, not damaged") {
  for (const std::string& place : {kFused, kGqa}) {
    CHECK_THAT(patched(place + "/peft_type", "\"IA3\"", ErrorKind::kUnsupported).what(), Says("(peft_type \"IA3\")"));
    CHECK(patched(place + "/peft_type", "7", ErrorKind::kUnsupported).hint().empty());
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
      const std::uint32_t kv = tp * pick(1, 2), group = pick(1, 4), dim = pick(1, 8);
      module.specs.emplace_back(GQAQKVColumnParallelLinearSpec{"qkv", "q", "k", "v", "o", kv * group, kv, 1,
                                                               kv * group / tp * dim, kv / tp * dim, pick(0, 1) == 1,
                                                               pick(0, 1) == 1, tp, pick(0, 1) ? kLoraPeftType : ""});
    }
    metadata.modules.push_back(module);
  }
  return metadata;
}

TEST_CASE("Metadata that is written is read back the same") {
  static std::size_t specs = 0;
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(0, 200));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const StageMetadata metadata = random_metadata(random);
  CHECK(read(metadata_text(metadata)) == metadata);
  for (const ModuleSpecs& module : metadata.modules) specs += module.specs.size();
  if (seed == 199) {  // counted over all of them
    CHECK(specs > 100);
  }
}

TEST_CASE("An embedding may be split over the vocabulary or across the embedding") {
  const StageMetadata metadata{{{"across.weight", true, 1, 1, 4}, {"vocabulary.weight", true, 0, 1, 4}}, {}};
  const std::string text = metadata_text(metadata);
  const Json across = Json::parse(text).at("parameters").at("across.weight");
  CHECK(across == Json::parse(R"({"tensor_model_parallel": true, "partition_dim": 1, "partition_stride": 1,
                                  "num_partitions": 4})"));
  CHECK(read(text) == metadata);
}

/// Every metadata file of the golden cases, sorted.
std::vector<fs::path> reference_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(testdata("golden")))
    if (metadata_pp_rank(entry.path().filename().string())) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("The reference's metadata is read, and written again with the same content") {
  static const std::vector<fs::path> files = reference_files();
  REQUIRE(files.size() >= 14 + 5);
  const fs::path file = GENERATE_REF(from_range(files));
  INFO(fs::relative(file, testdata("")).string());
  const StageMetadata metadata = read_metadata(file);
  CHECK(Json::parse(metadata_text(metadata)) == Json::parse(read_file(file)));
  CHECK(std::is_sorted(metadata.parameters.begin(), metadata.parameters.end(),
                       [](const auto& a, const auto& b) { return a.name < b.name; }));
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
