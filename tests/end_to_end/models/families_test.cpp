// Every built-in family: a tiny checkpoint of each, names and shapes written down in testdata/families from the
// architecture, is cut over meshes and consolidated again.

#include "support/families.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/specs/family/builtin_files.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/stages/stage_plan.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Whether a training layout joins it with others.
bool is_joined(const FamilyCase& c, const std::string& name) {
  const std::set<std::string> joins = {"gemma", "gemma2", "gemma3_text", "olmo2"};
  return joins.count(c.model_type()) > 0 &&
         (name.find("mlp.gate_proj") != std::string::npos || name.find("mlp.up_proj") != std::string::npos);
}

TEST_CASE("Every built-in family has a checkpoint here") {
  std::set<std::string> seen = {"llama", "mistral",     "granite",     "qwen2",
                                "qwen3", "llama_eagle", "llama_eagle3"};  // in the golden cases
  for (const FamilyCase& c : family_cases()) seen.insert(c.model_type());
  for (const auto& entry : fs::directory_iterator(testdata("architectures"))) {
    const nlohmann::json config = nlohmann::json::parse(read_file(entry.path())).at("config");
    const nlohmann::json flat = config.flatten();
    for (const auto& [pointer, value] : flat.items())
      if (pointer.ends_with("/model_type") && value.is_string()) seen.insert(value.get<std::string>());
  }
  // The families that a file only points to, and files that only point to a family.
  std::map<std::string, std::string> targets;
  for (const BuiltinFile& file : kBuiltinFamilies) {
    const nlohmann::json family = nlohmann::json::parse(file.json);
    for (const char* key : {"like", "language_model"})
      if (family.size() == 2 && family.contains(key)) targets[family.at("model_type")] = family.at(key);
  }
  for (const auto& [name, target] : targets)
    if (seen.count(name) > 0) seen.insert(target);
  for (const std::string& name : known_model_types()) {
    INFO(name << ": add testdata/architectures/" << name << ".json");
    CHECK((seen.count(name) == 1 || (targets.count(name) == 1 && seen.count(targets.at(name)) == 1)));
  }
}

TEST_CASE("Every built-in family has the parameters of its checkpoint") {
  const FamilyCase c = GENERATE(from_range(family_cases()));
  DYNAMIC_SECTION(c.name) {
    const TempDir temp;
    write_case(c, temp / "model");
    const Checkpoint checkpoint = reshard::read_whole(temp / "model", {ConfigUse::kNeeded});
    REQUIRE(checkpoint.model);
    std::vector<std::string> expected, found;
    for (const auto& tensor : c.json["tensors"])
      expected.push_back(tensor["name"].get<std::string>() + " " + to_string(tensor["shape"].get<Dims>()));
    for (const ModelParameter& p : checkpoint.model->parameters) {
      const auto index = checkpoint.map.find_logical(p.name);
      if (!p.tied_to.empty() || (p.optional && !index)) continue;
      REQUIRE(index);
      found.push_back(
          p.name + " " +
          to_string(p.shape_known != ShapeKnown::kExactly ? checkpoint.map.logical[*index].shape : p.shape));
    }
    CHECK(found == expected);
  }
}

TEST_CASE("Checkpoints of every family are sharded over meshes as their architecture says, and consolidated again") {
  const FamilyCase c = GENERATE(from_range(family_cases()));
  for (const std::uint32_t tp : c.degrees())
    for (const std::uint32_t pp : {1, 2})
      for (const std::string kind : {"ranks", "optimum", "presharded"}) {
        if (kind == "presharded" && pp > 1) continue;
        DYNAMIC_SECTION(c.name << ", tp " << tp << ", pp " << pp << ", " << kind) {
          const Input input({.layout = kind, .tp = tp, .pp = pp},
                            [&](const fs::path& directory) { return write_case(c, directory); });
          CHECK((input.whole() == input.tensors));
          if (kind != "ranks" || pp > 1) continue;
          const auto ranks = read_ranks(input.path());
          REQUIRE(ranks.size() == tp);
          for (const auto& tensor : c.json["tensors"]) {
            const auto name = tensor["name"].get<std::string>();
            if (is_joined(c, name)) continue;
            CAPTURE(name);
            std::uint64_t rank = 0;
            for (const auto& [folder, held] : ranks) {
              REQUIRE(held.count(name) == 1);
              CHECK((held.at(name) == rank_part(c, tensor, input.tensors.at(name), tp, rank++)));
            }
          }
        }
      }
}

TEST_CASE("Every family is padded where the ranks do not divide and it may be, and comes back") {
  std::size_t filled = 0, refused = 0;
  for (const FamilyCase& c : family_cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : {2u, 3u, 5u, 7u}) {
      CAPTURE(c.name, tp);
      fs::remove_all(temp / "out");
      const RequestFields padded{.layout = "presharded", .tp = tp, .options = {"pad"}};
      try {
        shard(temp / "model", temp / "out", padded);
      } catch (const Error& error) {
        INFO(error.what());
        CHECK((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kUnsupported));
        CHECK_FALSE(error.hint().empty());
        CHECK_FALSE(fs::exists(temp / "out"));
        ++refused;
        continue;
      }
      std::uint32_t rank = 0;
      const auto ranks = read_weights(temp / "out");
      REQUIRE(ranks.size() == tp);
      for (const auto& [file, held] : ranks) {
        for (const auto& tensor : c.json["tensors"]) {
          const auto tensor_name = tensor["name"].get<std::string>();
          const int dim = tensor["split"].get<int>();
          const TensorData& whole = tensors.at(tensor_name);
          CAPTURE(file, tensor_name);
          REQUIRE(held.count(tensor_name) == 1);
          const std::uint64_t size = dim < 0 ? 0 : whole.shape[static_cast<std::size_t>(dim)];
          // Blocks and groups of what is quantised stay whole; how much that makes is another test's.
          const bool quantized = c.json["config"].contains("quantization_config");
          const std::uint64_t held_size = dim < 0 ? 0 : held.at(tensor_name).shape[static_cast<std::size_t>(dim)];
          const bool pairs = c.model_type() == "gpt_oss" && tensor_name.find("gate_up_proj") != tensor_name.npos;
          const std::uint64_t unit = pairs ? 2 : 1;
          const std::uint64_t each = quantized ? held_size : (size / unit + tp - 1) / tp * unit;
          if (each * tp == size) {
            CHECK((held.at(tensor_name) == rank_part(c, tensor, whole, tp, rank)));
            continue;
          }
          // Rows of a bias get the lowest bfloat16, as NxD's layers have it, all else zeros.
          const bool bias = tensor_name.ends_with(".bias");
          REQUIRE(each * tp >= size);
          const std::string filler = bias ? std::string("\x7f\xff") : std::string(bits(whole.dtype) / 8, '\0');
          CHECK((held.at(tensor_name) ==
                 slices(whole, static_cast<std::size_t>(dim), {{rank * each, (rank + 1) * each}}, filler)));
          ++filled;
        }
        ++rank;
      }
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
  CHECK(filled > 500);
  CHECK(refused > 10);
}

TEST_CASE("Heads that would be split are refused with the degrees that work") {
  const TempDir temp;
  for (const char* name : {"phi3", "gpt_neox", "falcon_new", "dbrx", "gpt_oss"}) {
    CAPTURE(name);
    write_case(family_case(name), temp / "model");
    check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 8)); },
                  {.kind = ErrorKind::kUsage,
                   .says = "heads, which 8 ranks do not divide",
                   .hint = "TP degrees that work for this model: 1, 2"});
  }
}

TEST_CASE("Scales that a partition would part from their weights are refused with the degrees that work") {
  const std::tuple<const char*, const char*, nlohmann::json, int, const char*> cuts[] = {
      // Blocks of 8 outputs: 20 are two and a half.
      {"llama_fp8", "intermediate_size", 20, 2, "not a whole number of quantisation blocks"},
      {"llama_fp8", "intermediate_size", 24, 2, "weight_scale_inv: dim 0 has 3 blocks of 8 elements"},
      {"llama_gptq", "intermediate_size", 24, 2, "dim 1 has 3 blocks of 8 elements"},
      {"llama_awq", "num_key_value_heads", 2, 4, "not replicated"}};
  for (const auto& [name, key, value, tp, says] : cuts) {
    DYNAMIC_SECTION(name << ", " << key << " " << value << ", tp " << tp) {
      FamilyCase c = family_case(name);
      c.json["config"][key] = value;
      std::set<std::string> names;
      for (const auto& tensor : c.json["tensors"]) names.insert(tensor["name"].get<std::string>());
      check_refused(
          [&, degree = tp] {
            const ModelConfig config{"config.json", std::make_shared<const Json>(Json::parse(c.json["config"].dump())),
                                     c.model_type()};
            const Model model = instantiate(config, [&](const std::string& held) { return names.count(held) > 0; });
            plan_stages(model, static_cast<std::uint32_t>(degree), partition_evenly(2, {}), {},
                        [](const std::string&) { return true; });
          },
          {.kind = ErrorKind::kUsage, .says = says, .hint = "TP degrees that work for this model: 1"});
    }
  }
}

TEST_CASE("A quantization_config that cannot be partitioned, or makes no sense, is refused with the reason") {
  const TempDir temp;
  write_case(family_case("llama_fp8"), temp / "model");
  const fs::path config = temp / "model/config.json";
  const auto plan = [&](const char* quantization) {
    merge_json(config, {{"quantization_config", nullptr}});
    merge_json(config, {{"quantization_config", nlohmann::json::parse(quantization)}});
    plan_shard(shard_request(temp / "model", temp / "out", 2));
  };
  check_refusals<const char*>(
      plan, {.kind = ErrorKind::kUnsupported},
      {{"torchao", R"({"quant_method": "torchao"})", {.says = "whose parts only torchao knows"}},
       {"gguf", R"({"quant_method": "gguf"})", {.says = "those of llama.cpp"}},
       {"unknown",
        R"({"quant_method": "strange\n"})",
        {.says = "\"strange\\x0a\", which is not supported; supported are awq, compressed-tensors, fp8, gptq, "
                 "modelopt, mxfp4 "
                 "(gpt_oss alone)"}}});
  check_refused([&] { plan(R"({"quant_method": "awq", "group_size": 128})"); }, {.path = config, .says = "bits"});
}

TEST_CASE("A tensor that the family does not name is refused, and so is one that is missing") {
  const FamilyCase c = GENERATE(from_range(sample_of(family_cases())));
  DYNAMIC_SECTION(c.name) {
    const TempDir temp;
    const TensorMap whole = write_case(c, temp / "model");
    const auto refused = [&](const TensorMap& stored, const std::string& says) {
      write_safetensors(temp / "model/model.safetensors", stored);
      check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 1)); }, {.says = says});
    };
    TensorMap tensors = whole;
    tensors["model.layers.0.extra.weight"] = {DType::kBF16, {2}, std::string(4, '\0')};
    refused(tensors, "model.layers.0.extra.weight");
    tensors = whole;
    std::string lost;
    for (const auto& [name, tensor] : whole)
      if (name.ends_with("norm.weight") || name.ends_with("ln_f.weight") || name.ends_with("norm_1.weight"))
        lost = name;
    REQUIRE(tensors.erase(lost) == 1);
    refused(tensors, lost);
  }
}

}  // namespace
}  // namespace reshard::test
