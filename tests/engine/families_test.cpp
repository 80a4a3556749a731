// Every built-in family: a tiny checkpoint of each, names and shapes written down in testdata/families from the
// architecture, is cut over meshes and put together again.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/specs/stage_plan.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  nlohmann::json json;

  std::string model_type() const { return json["config"]["model_type"].get<std::string>(); }
  std::vector<std::uint32_t> degrees() const { return json["tp"].get<std::vector<std::uint32_t>>(); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& entry : fs::directory_iterator(testdata("families")))
    all.push_back({entry.path().stem().string(), nlohmann::json::parse(read_file(entry.path()))});
  std::sort(all.begin(), all.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return all;
}

Case case_named(const std::string& name) {
  return {name, nlohmann::json::parse(read_file(testdata("families") / (name + ".json")))};
}

DType dtype_of(const std::string& name) {
  if (name.ends_with("_blocks") || name.ends_with("_scales") || name.ends_with("attention.bias")) return DType::kU8;
  return name.ends_with("e_score_correction_bias") ? DType::kF32 : DType::kBF16;
}

TensorMap write_case(const Case& c, const fs::path& directory) {
  Random random(7);
  TensorMap tensors;
  for (const auto& tensor : c.json["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    tensors[name] = random_tensor(random, dtype_of(name), tensor["shape"].get<Dims>());
  }
  fs::create_directories(directory);
  write_file(directory / "config.json", c.json["config"].dump(2));
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

struct Part {
  std::uint64_t begin, end;
};

/// The elements of `parts` along `dim`, one part after the other.
TensorData taken(const TensorData& whole, std::size_t dim, const std::vector<Part>& parts) {
  std::uint64_t outer = 1, inner = bits(whole.dtype) / 8;
  for (std::size_t d = 0; d < dim; ++d) outer *= whole.shape[d];
  for (std::size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  TensorData out{whole.dtype, whole.shape, {}};
  out.shape[dim] = 0;
  for (const Part& part : parts) out.shape[dim] += part.end - part.begin;
  for (std::uint64_t o = 0; o < outer; ++o)
    for (const Part& part : parts)
      out.bytes += whole.bytes.substr((o * whole.shape[dim] + part.begin) * inner, (part.end - part.begin) * inner);
  return out;
}

/// What a packed matrix is packed of, by hand: sizes along the dim that is split. One that every rank has is negative.
std::vector<std::int64_t> packed(const std::string& model_type, const std::string& name, std::int64_t size) {
  const auto is = [&](const char* type, const char* part) {
    return model_type == type && name.find(part) != std::string::npos;
  };
  if (is("phi3", "qkv_proj")) return {24, 12, 12};
  if (is("phi3", "gate_up_proj") || is("llama4_text", "gate_up_proj")) return {size / 2, size / 2};
  if (is("gpt2", "c_attn")) return {24, 24, 24};
  if (is("falcon", "query_key_value") && size == 36) return {24, -6, -6};
  if (is("dbrx", "Wqkv")) return {24, 12, 12};
  if (is("dbrx", "experts.mlp")) return {16, 16, 16};
  return {size};
}

TensorData rank_part(const Case& c, const nlohmann::json& tensor, const TensorData& whole, std::uint64_t tp,
                     std::uint64_t rank) {
  const int dim = tensor["split"].get<int>();
  if (dim < 0) return whole;
  const auto name = tensor["name"].get<std::string>();
  const auto size = static_cast<std::int64_t>(whole.shape[static_cast<std::size_t>(dim)]);
  std::vector<Part> parts;
  std::uint64_t at = 0;
  for (const std::int64_t matrix : packed(c.model_type(), name, size)) {
    const auto elems = static_cast<std::uint64_t>(std::abs(matrix));
    if (matrix < 0)
      parts.push_back({at, at + elems});
    else
      parts.push_back({at + elems / tp * rank, at + elems / tp * (rank + 1)});
    at += elems;
  }
  return taken(whole, static_cast<std::size_t>(dim), parts);
}

/// Whether a training layout joins it with others.
bool is_joined(const Case& c, const std::string& name) {
  const std::set<std::string> joins = {"gemma", "gemma2", "gemma3_text", "olmo2"};
  return joins.count(c.model_type()) > 0 &&
         (name.find("mlp.gate_proj") != std::string::npos || name.find("mlp.up_proj") != std::string::npos);
}

TEST_CASE("Every built-in family has a checkpoint here, and the parameters that it has") {
  std::set<std::string> seen = {"llama", "mistral", "granite", "qwen2", "qwen3"};  // in the golden cases
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    seen.insert(c.model_type());
    const TempDir temp;
    write_case(c, temp / "model");
    const Checkpoint checkpoint = read_hugging_face(temp / "model", ConfigUse::kNeeded);
    REQUIRE(checkpoint.model);
    std::vector<std::string> expected, found;
    for (const auto& tensor : c.json["tensors"])
      expected.push_back(tensor["name"].get<std::string>() + " " + to_string(tensor["shape"].get<Dims>()));
    for (const ModelParameter& p : checkpoint.model->parameters) {
      const auto index = checkpoint.layout.find_logical(p.name);
      if (!p.tied_to.empty() || (p.optional && !index)) continue;
      REQUIRE(index);
      found.push_back(p.name + " " + to_string(p.any_shape ? checkpoint.layout.logical[*index].shape : p.shape));
    }
    CHECK(found == expected);
  }
  const std::vector<std::string> known = known_model_types();
  CHECK(seen == std::set<std::string>(known.begin(), known.end()));
}

TEST_CASE("Checkpoints of every family are cut over meshes as their architecture says, and put together again") {
  for (const Case& c : cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : c.degrees())
      for (const std::uint32_t pp : {1, 2})
        for (const bool optimum : {false, true}) {
          CAPTURE(c.name, tp, pp, optimum);
          const fs::path out = temp / "out";
          const fs::path whole = temp / "whole";
          fs::remove_all(out);
          fs::remove_all(whole);
          ShardRequest request = shard_request(temp / "model", out, tp, pp);
          if (optimum) request.sharding.form = {ShardsKind::kOptimum, Format::kPytorch};
          shard(request);
          if (!optimum && pp == 1) {
            const auto ranks = read_ranks(out);
            REQUIRE(ranks.size() == tp);
            for (const auto& tensor : c.json["tensors"]) {
              const auto name = tensor["name"].get<std::string>();
              if (is_joined(c, name)) continue;
              CAPTURE(name);
              std::uint64_t rank = 0;
              for (const auto& [folder, held] : ranks) {
                REQUIRE(held.count(name) == 1);
                CHECK((held.at(name) == rank_part(c, tensor, tensors.at(name), tp, rank++)));
              }
            }
          }
          ConsolidateRequest back;
          back.checkpoint_directory = out;
          back.output_directory = whole;
          consolidate(back);
          CHECK((read_tensors(whole / "model.safetensors") == tensors));
        }
  }
}

TEST_CASE("Heads that would be cut are refused with the degrees that work") {
  for (const char* name : {"phi3", "gpt_neox", "falcon_new", "dbrx", "gpt_oss"}) {
    const Case c = case_named(name);
    CAPTURE(c.name);
    const TempDir temp;
    write_case(c, temp / "model");
    const Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 8)); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.what(), Says("heads, which 8 ranks do not divide"));
    CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1, 2"));
  }
}

TEST_CASE("Scales that a cut would part from their weights are refused with the degrees that work") {
  const std::tuple<const char*, const char*, nlohmann::json, int, const char*> cuts[] = {
      // Blocks of 8 outputs: 20 are two and a half.
      {"llama_fp8", "intermediate_size", 20, 2, "cut through one"},
      {"llama_fp8", "intermediate_size", 24, 2, "weight_scale_inv: dim 0 has 3 elements"},
      {"llama_gptq", "intermediate_size", 24, 2, "dim 1 has 3 elements"},
      {"llama_awq", "num_key_value_heads", 2, 4, "not repeated"}};
  for (const auto& [name, key, value, tp, says] : cuts) {
    CAPTURE(name, key, tp);
    {
      Case c = case_named(name);
      c.json["config"][key] = value;
      const Error error = error_of([&, degree = tp] {
        const ModelConfig config{"config.json", std::make_shared<const Json>(Json::parse(c.json["config"].dump())),
                                 c.model_type()};
        // Every linear of the layers is quantised.
        const Model model = instantiate(find_family(config), config, [](const std::string& held) {
          return held.find("layers") != std::string::npos;
        });
        plan_stages(model, static_cast<std::uint32_t>(degree), partition_evenly(2, {}), {},
                    [](const std::string&) { return true; });
      });
      CHECK(error.kind() == ErrorKind::kUsage);
      CHECK_THAT(error.what(), Says(says));
      CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1"));
    }
  }
}

TEST_CASE("A quantization_config that makes no sense is refused with its key") {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"quant_method": "fp8", "weight_block_size": []})", "weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 0]})", "weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": 128})", "weight_block_size"},
      {R"({"quant_method": "gptq", "bits": 3, "group_size": 128})", "bits"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 0})", "group_size"},
      {R"({"quant_method": "awq", "group_size": 128})", "bits"},
      {R"({"quant_method": "compressed-tensors", "config_groups": []})", "config_groups"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": null}}})", "weights"}};
  for (const auto& [text, key] : wrong) {
    CAPTURE(text);
    Case c = case_named("llama_fp8");
    c.json["config"]["quantization_config"] = nlohmann::json::parse(text);
    const TempDir temp;
    write_case(c, temp / "model");
    const Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 1)); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == (temp / "model/config.json").string());
    CHECK_THAT(error.what(), Says(key));
  }
}

TEST_CASE("A tensor that the family does not name is refused, and so is one that is missing") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const TempDir temp;
    TensorMap tensors = write_case(c, temp / "model");
    const TensorMap whole = tensors;
    tensors["model.layers.0.extra.weight"] = {DType::kBF16, {2}, std::string(4, '\0')};
    write_safetensors(temp / "model/model.safetensors", tensors);
    const Error extra = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 1)); });
    CHECK(extra.kind() == ErrorKind::kBadInput);
    CHECK_THAT(extra.what(), Says("model.layers.0.extra.weight"));
    tensors = whole;
    std::string lost;
    for (const auto& [name, tensor] : whole)
      if (name.ends_with("norm.weight") || name.ends_with("ln_f.weight") || name.ends_with("norm_1.weight"))
        lost = name;
    REQUIRE_FALSE(lost.empty());
    tensors.erase(lost);
    write_safetensors(temp / "model/model.safetensors", tensors);
    const Error missing = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 1)); });
    CHECK(missing.kind() == ErrorKind::kBadInput);
    CHECK_THAT(missing.what(), Says(lost));
  }
}

}  // namespace
}  // namespace reshard::test
