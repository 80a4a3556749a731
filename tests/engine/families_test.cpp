// Every built-in family: a tiny checkpoint of each, names and shapes written down in testdata/families from the
// architecture, is cut over meshes and put together again.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/plan/convert.h"
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
  if (is("dbrx", "experts.mlp")) return std::vector<std::int64_t>(static_cast<std::size_t>(size / 16), 16);
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

TEST_CASE("Checkpoints of every family are cut for inference, and put together again") {
  for (const Case& c : cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : c.degrees()) {
      CAPTURE(c.name, tp);
      const fs::path out = temp / ("out" + std::to_string(tp));
      ShardRequest request = shard_request(temp / "model", out, tp);
      request.sharding.form.kind = ShardsKind::kPresharded;
      shard(request);
      ConsolidateRequest back;
      back.checkpoint_directory = out;
      back.output_directory = temp / ("whole" + std::to_string(tp));
      consolidate(back);
      CHECK((read_tensors(*back.output_directory / "model.safetensors") == tensors));
    }
  }
}

constexpr const char* kExpertFamilies[] = {"mixtral", "qwen2_moe",   "qwen3_moe", "deepseek_v3",
                                           "dbrx",    "llama4_text", "gpt_oss",   "gpt_oss_mxfp4"};

/// A checkpoint of a family with six experts a layer, where the file has three.
Case with_six_experts(const std::string& name) {
  Case c = case_named(name);
  bool changed = false;
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (c.json["config"].contains(key)) c.json["config"][key] = 6, changed = true;
  if (name == "dbrx") c.json["config"]["ffn_config"]["moe_num_experts"] = 6, changed = true;
  REQUIRE(changed);
  nlohmann::json tensors = nlohmann::json::array();
  for (nlohmann::json tensor : c.json["tensors"]) {
    const auto tensor_name = tensor["name"].get<std::string>();
    const bool router = tensor_name.find("router") != std::string::npos || tensor_name.ends_with(".gate.weight") ||
                        tensor_name.ends_with("e_score_correction_bias");
    const std::size_t one = tensor_name.find(".experts.0.");
    const bool stacked = tensor_name.find(".experts.") != std::string::npos &&
                         tensor_name.find(".experts.1.") == std::string::npos &&
                         tensor_name.find(".experts.2.") == std::string::npos && one == std::string::npos;
    if (router || stacked) tensor["shape"][0] = tensor["shape"][0].get<std::uint64_t>() * 2;
    tensors.push_back(tensor);
    for (const char* expert : {"3", "4", "5"})
      if (one != std::string::npos) {
        tensor["name"] = std::string(tensor_name).replace(one + 9, 1, expert);
        tensors.push_back(tensor);
      }
  }
  c.json["tensors"] = tensors;
  return c;
}

/// What an expert-parallel rank has of a tensor, before it is cut over tensor-parallel ranks; nothing if it is another's.
std::optional<TensorData> expert_part(const std::string& name, const TensorData& whole, std::uint64_t ep,
                                      std::uint64_t ep_rank) {
  const std::size_t experts = name.find(".experts.");
  if (experts == std::string::npos) return whole;
  const char digit = name[experts + 9];
  const std::uint64_t each = 6 / ep;
  if (digit >= '0' && digit <= '9') {
    if (static_cast<std::uint64_t>(digit - '0') / each != ep_rank) return std::nullopt;
    return whole;
  }
  const std::uint64_t rows = whole.shape[0] / ep;
  return taken(whole, 0, {{ep_rank * rows, (ep_rank + 1) * rows}});
}

std::string two_digits(std::uint64_t number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

TEST_CASE("Experts are spread over expert-parallel ranks, all else is on each of them, and they come together again") {
  for (const char* family : kExpertFamilies) {
    const Case c = with_six_experts(family);
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const auto& [tp, pp, ep] : {std::tuple(1u, 1u, 2u), {2u, 1u, 3u}, {1u, 2u, 6u}, {2u, 2u, 2u}})
      for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
        CAPTURE(c.name, tp, pp, ep, name(format));
        const fs::path out = temp / "out";
        const fs::path whole = temp / "whole";
        fs::remove_all(out);
        fs::remove_all(whole);
        ShardRequest request = shard_request(temp / "model", out, tp, pp);
        request.sharding.ep = ep;
        request.sharding.form = {format == Format::kSafetensors ? ShardsKind::kRanks : ShardsKind::kOptimum, format};
        shard(request);
        if (format == Format::kSafetensors && pp == 1) {
          const auto ranks = read_ranks(out);
          REQUIRE(ranks.size() == tp * ep);
          for (std::uint64_t ep_rank = 0; ep_rank < ep; ++ep_rank)
            for (std::uint64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
              const TensorMap& held =
                  ranks.at("ep_rank_" + two_digits(ep_rank) + "_tp_rank_" + two_digits(tp_rank) + "_pp_rank_00");
              std::size_t count = 0;
              for (const auto& tensor : c.json["tensors"]) {
                const auto tensor_name = tensor["name"].get<std::string>();
                CAPTURE(tensor_name);
                const auto part = expert_part(tensor_name, tensors.at(tensor_name), ep, ep_rank);
                CHECK(held.count(tensor_name) == (part ? 1 : 0));
                if (!part || held.count(tensor_name) == 0) continue;
                CHECK((held.at(tensor_name) == rank_part(c, tensor, *part, tp, tp_rank)));
                ++count;
              }
              CHECK(held.size() == count);
            }
        } else if (format != Format::kSafetensors) {
          CHECK(fs::exists(out / "shards/model" /
                           ("dp_rank_00_ep_rank_" + two_digits(ep - 1) + "_tp_rank_00_pp_rank_00.pt")));
        }
        ConsolidateRequest back;
        back.checkpoint_directory = out;
        back.output_directory = whole;
        consolidate(back);
        CHECK((read_tensors(whole / "model.safetensors") == tensors));
      }
  }
}

TEST_CASE("Expert-parallel ranks become other ranks, and those of another mesh are the same as made directly") {
  const TempDir temp;
  const Case c = with_six_experts("qwen3_moe");
  const TensorMap tensors = write_case(c, temp / "model");
  ShardRequest request = shard_request(temp / "model", temp / "six", 2, 2);
  request.sharding.ep = 6;
  shard(request);
  ConvertRequest convert;
  convert.source = temp / "six";
  convert.output_directory = temp / "three";
  convert.to = ShardsKind::kRanks;
  convert.tp = 1;
  convert.sharding.pp = 1;
  convert.sharding.ep = 3;
  execute(*plan_convert(convert), {});
  request = shard_request(temp / "model", temp / "direct", 1, 1);
  request.sharding.ep = 3;
  shard(request);
  CHECK((read_ranks(temp / "three") == read_ranks(temp / "direct")));
  CHECK(read_file(temp / "three/tensor_parallel_shards/mp_metadata_pp_rank_0.json") ==
        read_file(temp / "direct/tensor_parallel_shards/mp_metadata_pp_rank_0.json"));
  const nlohmann::json metadata =
      nlohmann::json::parse(read_file(temp / "direct/tensor_parallel_shards/mp_metadata_pp_rank_0.json"));
  const nlohmann::json& expert = metadata["parameters"]["model.layers.1.mlp.experts.4.up_proj.weight"];
  CHECK(expert["expert_model_parallel"] == true);
  CHECK(expert["expert_rank"] == 2);
}

TEST_CASE("Experts stacked along the dim that is split have to be matrices packed in it") {
  const TempDir temp;
  const Case c = with_six_experts("dbrx");
  write_case(c, temp / "model");
  nlohmann::json family = nlohmann::json::parse(builtin_family("dbrx")->json_text);
  for (nlohmann::json& module : family["modules"])
    if (module.contains("stacked_experts")) {
      module["plan"] = "colwise";
      module.erase("packed");
    }
  write_file(temp / "spec.json", family.dump());
  ShardRequest request = shard_request(temp / "model", temp / "out", 1);
  request.spec = read_family(temp / "spec.json");
  request.sharding.ep = 2;
  const Error error = error_of([&] { plan_shard(request); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(error.what(), Says("not each a packed matrix"));
}

TEST_CASE("Experts that cannot be spread so are refused, and ranks of experts that are not all there") {
  const TempDir temp;
  const Case c = with_six_experts("mixtral");
  write_case(c, temp / "model");
  ShardRequest request = shard_request(temp / "model", temp / "out", 1);
  const auto refused = [&](std::uint32_t ep, ShardsKind kind, const char* says) {
    request.sharding.ep = ep;
    request.sharding.form = {kind, Format::kSafetensors};
    const Error error = error_of([&] { plan_shard(request); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.what(), Says(says));
    return error;
  };
  CHECK_THAT(refused(4, ShardsKind::kRanks, "6 experts cannot be shared by 4").hint(), Says("1, 2, 3, 6"));
  refused(2, ShardsKind::kPresharded, "--ep");
  refused(0, ShardsKind::kRanks, "--ep 0");
  write_case(case_named("olmo2"), temp / "dense");
  request.model_directory = temp / "dense";
  refused(2, ShardsKind::kRanks, "has no experts");

  request = shard_request(temp / "model", temp / "out", 1);
  request.sharding.ep = 3;
  shard(request);
  const fs::path shards = temp / "out/tensor_parallel_shards";
  ConsolidateRequest back;
  back.checkpoint_directory = temp / "out";
  back.output_directory = temp / "whole";
  fs::rename(shards / "ep_rank_01_tp_rank_00_pp_rank_00", temp / "aside");
  CHECK_THAT(error_of([&] { plan_consolidate(back); }).what(), Says("ep_rank_01_tp_rank_00_pp_rank_00"));
  fs::rename(temp / "aside", shards / "ep_rank_01_tp_rank_00_pp_rank_00");
  fs::rename(shards / "ep_rank_02_tp_rank_00_pp_rank_00", temp / "aside");
  const Error last = error_of([&] { plan_consolidate(back); });
  CHECK_THAT(last.what(), Says("expert-parallel rank 2, but there are 2"));
  fs::rename(shards / "ep_rank_01_tp_rank_00_pp_rank_00", shards / "ep_rank_02_tp_rank_00_pp_rank_00");
  fs::rename(temp / "aside", shards / "ep_rank_01_tp_rank_00_pp_rank_00");
  const Error swapped = error_of([&] { plan_consolidate(back); });
  CHECK(swapped.kind() == ErrorKind::kBadInput);
  CHECK_THAT(swapped.what(), Says("says the tensor is another's"));
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
