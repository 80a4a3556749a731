// Random adapters of random models through all that shards and consolidates them; those that were sharded exactly also
// after training on their fused linears: what PEFT makes of the consolidated directory is what was trained.

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/catch.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/oracle.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

struct Linear {
  std::string name;  // "self_attn.q_proj"
  std::uint64_t out;
  std::uint64_t in;
};

std::vector<Linear> linears_of(const TinyModel& model) {
  const std::string before = "model.layers.0.", after = ".weight";
  std::vector<Linear> linears;
  for (const auto& [name, shape] : parameters_of(model))
    if (name.starts_with(before) && shape.size() == 2)
      linears.push_back({name.substr(before.size(), name.size() - before.size() - after.size()), shape[0], shape[1]});
  return linears;
}

/// A model, a mesh, and an adapter that fits both.
struct Scenario {
  TinyModel model;
  OracleOptions mesh;
  bool grouped = false;  // key/value heads do not divide
  LoraFuse fuse = LoraFuse::kMean;
  OrderedJson config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
  std::map<std::pair<std::uint64_t, std::string>, std::uint64_t> ranks;  // layer, linear → r
  TensorMap tensors;
  std::vector<std::vector<std::string>> groups;  // linears that are fused

  /// The linear that stands for all that it is joined with.
  const std::string& leader(const std::string& linear) const {
    for (const auto& group : groups)
      if (std::find(group.begin(), group.end(), linear) != group.end()) return group.front();
    return linear;
  }
};

std::string layer_prefix(std::uint64_t layer) {
  return "base_model.model.model.layers." + std::to_string(layer) + ".";
}

/// Numbers that a mean of three does not round twice.
TensorData random_floats(Random& random, const Dims& shape) {
  TensorData tensor{DType::kF32, shape, {}};
  for (std::uint64_t i = 0; i < num_elems(shape).value(); ++i) {
    const float value = static_cast<float>(pick(random, 0, 1 << 20)) / 4096.0f - 100.0f;
    tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return tensor;
}

void add_extras(Scenario& s, Random& random) {
  if (pick(random, 0, 2) == 0) {
    s.config["modules_to_save"] = {"lm_head"};
    s.tensors["base_model.model.lm_head.weight"] = random_floats(random, {s.model.vocab, s.model.hidden});
  }
  if (pick(random, 0, 2) == 0) {
    const std::uint64_t r = s.config.contains("rank_pattern") && s.config["rank_pattern"].contains(".*")
                                ? s.config["rank_pattern"][".*"]
                                : s.config["r"];
    s.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = random_floats(random, {r, s.model.vocab});
    s.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = random_floats(random, {s.model.hidden, r});
  }
}

/// Ranks of one scale for all linears, and patterns that say them: by name, by layer, or with one for all the rest.
void draw_ranks(Scenario& s, Random& random) {
  const bool rslora = pick(random, 0, 3) == 0;
  const bool by_layer = pick(random, 0, 2) == 0;
  const bool rest = !by_layer && pick(random, 0, 1) == 0;
  const std::uint64_t common = rslora ? 4 : 2;
  const auto alpha_for = [&](std::uint64_t r) { return rslora ? r == 4 ? 6 : 3 : 2 * r; };  // 3·√r, 2·r
  if (rslora) s.config["use_rslora"] = true;
  s.config["r"] = common;
  s.config["lora_alpha"] = alpha_for(common);
  const std::uint64_t layers = by_layer ? s.model.layers : 1;
  for (std::uint64_t drawn = 0; drawn < layers; ++drawn)
    for (const Linear& linear : linears_of(s.model)) {
      std::uint64_t r = rslora ? (pick(random, 0, 1) == 0 ? 1 : 4) : pick(random, 1, 3);
      const auto first = s.ranks.find({drawn, s.leader(linear.name)});
      if (s.fuse == LoraFuse::kMean && first != s.ranks.end()) r = first->second;
      const std::string name = linear.name.substr(linear.name.find('.') + 1);
      const std::string key = by_layer ? "layers\\." + std::to_string(drawn) + "\\.(mlp|self_attn)\\." + name : name;
      for (std::uint64_t layer = 0; layer < s.model.layers; ++layer)
        if (!by_layer || layer == drawn) s.ranks[{layer, linear.name}] = r;
      if (rest && r == common) continue;
      s.config["rank_pattern"][key] = r;
      s.config["alpha_pattern"][key] = alpha_for(r);
    }
  if (!rest) return;
  s.config["r"] = 64;  // of no module
  s.config["rank_pattern"][".*"] = common;
  s.config["alpha_pattern"][".*"] = alpha_for(common);
}

Scenario random_scenario(Random& random) {
  Scenario s;
  do {
    s.model.layers = pick(random, 1, 4);
    s.model.kv_heads = std::uint64_t{1} << pick(random, 0, 3);
    s.model.heads = s.model.kv_heads << pick(random, 0, 2);
    s.model.head_dim = 2 * pick(random, 1, 2);
    s.model.hidden = 16;
    s.model.intermediate = 16 * pick(random, 1, 2);
    s.mesh.tp = std::uint64_t{1} << pick(random, 0, 3);
    s.mesh.pp = pick(random, 1, s.model.layers);
    s.mesh.fuse_qkv = pick(random, 0, 1) == 1;
  } while (!is_legal(s.model, s.mesh));
  s.fuse = pick(random, 0, 1) == 1 ? LoraFuse::kExact : LoraFuse::kMean;
  s.grouped = s.model.kv_heads < s.mesh.tp || s.model.kv_heads % s.mesh.tp != 0;
  s.groups = {{"mlp.gate_proj", "mlp.up_proj"}};
  if (s.grouped || (s.mesh.fuse_qkv && s.model.heads == s.model.kv_heads))
    s.groups.push_back({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  draw_ranks(s, random);
  for (std::uint64_t layer = 0; layer < s.model.layers; ++layer) {
    std::map<std::string, bool> adapted;  // by group or linear
    std::map<std::string, bool> biased;
    for (const Linear& linear : linears_of(s.model)) {
      const std::string& key = s.leader(linear.name);
      const std::uint64_t r = s.ranks.at({layer, linear.name});
      if (!adapted.count(key)) {
        adapted[key] = pick(random, 0, 3) > 0;
        biased[key] = pick(random, 0, 3) == 0 && !(s.grouped && key == "self_attn.q_proj");
      }
      if (!adapted[key]) continue;
      const std::string stem = layer_prefix(layer) + linear.name;
      s.tensors[stem + ".lora_A.weight"] = random_floats(random, {r, linear.in});
      s.tensors[stem + ".lora_B.weight"] = random_floats(random, {linear.out, r});
      if (!biased[key]) continue;
      s.tensors[stem + ".lora_B.bias"] = random_floats(random, {linear.out});
      s.tensors[stem + ".lora_magnitude_vector"] = random_floats(random, {linear.out});
    }
  }
  add_extras(s, random);
  return s;
}

std::vector<float> floats(const TensorData& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// What consolidation must give: the tensors themselves, but for the means of lora_A.
TensorMap expected_tensors(const Scenario& s) {
  TensorMap expected = s.tensors;
  if (s.fuse == LoraFuse::kExact) return expected;
  for (std::uint64_t layer = 0; layer < s.model.layers; ++layer)
    for (const auto& group : s.groups) {
      std::vector<std::string> names;
      for (const std::string& linear : group) names.push_back(layer_prefix(layer) + linear + ".lora_A.weight");
      if (!s.tensors.count(names.front())) continue;
      std::vector<float> sum(floats(s.tensors.at(names.front())).size(), 0.0f);
      for (const std::string& name : names) {
        const std::vector<float> values = floats(s.tensors.at(name));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      }
      for (float& value : sum) value /= static_cast<float>(names.size());
      for (const std::string& name : names)
        std::memcpy(expected[name].bytes.data(), sum.data(), expected[name].bytes.size());
    }
  return expected;
}

/// What PEFT's get_pattern_key finds for a module, or `fallback`.
double pattern_value(const OrderedJson& config, const char* patterns, const char* fallback, const std::string& module) {
  if (config.contains(patterns))
    for (const auto& [key, value] : config.at(patterns).items())
      if (std::regex_match(module, std::regex("(.*\\.)?(" + key + ")"))) return value;
  return config.at(fallback);
}

/// The rank that PEFT gives a module, and what it multiplies B·A by.
struct PeftScale {
  double r = 0;
  double scale = 0;
};
PeftScale peft_scale(const OrderedJson& config, const std::string& module) {
  const double r = pattern_value(config, "rank_pattern", "r", module);
  const double alpha = pattern_value(config, "alpha_pattern", "lora_alpha", module);
  return {r, alpha / (config.value("use_rslora", false) ? std::sqrt(r) : r)};
}

/// B · A · scale.
std::vector<double> product(const TensorData& b, const TensorData& a, double scale) {
  const std::uint64_t rows = b.shape[0], inner = a.shape[0], columns = a.shape[1];
  REQUIRE(b.shape[1] == inner);
  const std::vector<float> of_b = floats(b), of_a = floats(a);
  std::vector<double> out(rows * columns);
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < columns; ++j) {
      for (std::uint64_t k = 0; k < inner; ++k)
        out[i * columns + j] += static_cast<double>(of_b[i * inner + k]) * static_cast<double>(of_a[k * columns + j]);
      out[i * columns + j] *= scale;
    }
  return out;
}

/// "base_model.model.m.lora_A.weight" → "m".
std::string module_of(const std::string& tensor) {
  constexpr std::size_t kPrefix = std::string_view("base_model.model.").size();
  return tensor.substr(kPrefix, tensor.find(".lora_") - kPrefix);
}

/// "model.layers.0.mlp.gate_proj" → "model.layers.0.mlp.gate_up_proj", if they are fused.
std::string trained_as(const Scenario& s, const std::string& module) {
  for (const auto& group : s.groups)
    for (const std::string& linear : group)
      if (module.ends_with("." + linear))
        return module.substr(0, module.rfind('.') + 1) + (group.size() == 2 ? "gate_up_proj" : "qkv_proj");
  return module;
}

/// The adapter that `s` would be after training: of each fused linear one lora_A with the rows of all, and lora_B
/// without zeros. As PEFT would have it, a lora_A for each.
Scenario trained_further(const Scenario& s, Random& random) {
  Scenario trained = s;
  trained.fuse = LoraFuse::kMean;
  OrderedJson ranks = OrderedJson::object();
  OrderedJson alphas = OrderedJson::object();
  for (auto& [name, tensor] : trained.tensors) tensor = random_floats(random, tensor.shape);
  for (std::uint64_t layer = 0; layer < s.model.layers; ++layer)
    for (const auto& group : s.groups) {
      const std::string first = layer_prefix(layer) + group.front() + ".lora_A.weight";
      if (!s.tensors.count(first)) continue;
      std::uint64_t rows = 0;
      for (const std::string& linear : group) rows += s.ranks.at({layer, linear});
      const TensorData a = random_floats(random, {rows, s.model.hidden});
      for (const std::string& linear : group) {
        const std::string stem = layer_prefix(layer) + linear;
        trained.tensors[stem + ".lora_A.weight"] = a;
        TensorData& b = trained.tensors[stem + ".lora_B.weight"];
        b = random_floats(random, {b.shape[0], rows});
        ranks[module_of(stem + ".lora_A")] = rows;
        alphas[module_of(stem + ".lora_A")] = 1;
      }
    }
  for (const auto& [patterns, entries] : {std::pair("rank_pattern", &ranks), {"alpha_pattern", &alphas}}) {
    if (s.config.contains(patterns))
      for (const auto& [key, value] : s.config.at(patterns).items()) (*entries)[key] = value;
    trained.config[patterns] = *entries;
  }
  if (s.config.value("use_rslora", false)) trained.config.erase("use_rslora");
  return trained;
}

void shard_scenario(const Scenario& s, const fs::path& work, Format format) {
  write_file(work / "model/config.json", s.model.config().dump());
  write_safetensors(work / "peft/adapter_model.safetensors", s.tensors);
  write_file(work / "peft/adapter_config.json", s.config.dump(2));
  Request request = shard_request(work / "model", work / "shards", {.layout = "optimum", .format = format});
  set_target(request.target, s.mesh);
  request.adapters = {work / "peft"};
  request.target.lora_fuse = s.fuse;
  shard(request);
}

/// How a trainer leaves adapter_config.json.
enum class SavedConfig { kInPlace, kElsewhere, kByPeft };

/// Trains the adapter in `work` further and consolidates it. \returns the linears that were fused.
std::size_t check_trained(const Scenario& s, const fs::path& work, Format format, Random& random) {
  const auto saved = static_cast<SavedConfig>(pick(random, 0, 2));
  CAPTURE(static_cast<int>(saved));
  const Scenario trained = trained_further(s, random);
  shard_scenario(trained, work / "trained", format);
  const fs::path adapter = work / "shards/adapter_default";
  fs::remove_all(adapter / "adapter_shards");
  fs::rename(work / "trained/shards/adapter_default/adapter_shards", adapter / "adapter_shards");
  if (saved != SavedConfig::kInPlace) fs::remove(adapter / "adapter_config.unfused.json");
  const OrderedJson fused = OrderedJson::parse(read_file(adapter / "adapter_config.json"));
  if (saved == SavedConfig::kByPeft)  // with sorted keys, at all levels
    write_file(adapter / "adapter_config.json", nlohmann::json::parse(fused.dump()).dump(2));

  consolidate(consolidate_request(work / "shards", work / "again"));
  const TensorMap again = read_tensors(work / "again/adapter_model.safetensors");
  CHECK((again == trained.tensors));
  const std::string text = read_file(work / "again/adapter_config.json");
  const OrderedJson config = OrderedJson::parse(text);
  std::size_t changed = 0;
  for (const auto& [name, a] : again) {
    if (!name.ends_with(".lora_A.weight")) continue;
    const std::string module = module_of(name);
    INFO(module << "\n" << text << "\n" << fused.dump());
    const TensorData& b = again.at(name.substr(0, name.size() - 13) + "lora_B.weight");
    const PeftScale was = peft_scale(fused, trained_as(s, module));
    const PeftScale is = peft_scale(config, module);
    CHECK(is.r == static_cast<double>(a.shape[0]));
    CHECK((product(b, a, is.scale) == product(b, a, was.scale)));
    changed += module == trained_as(s, module) ? 0 : 1;
  }
  for (const char* fused_name : {"gate_up_proj", "qkv_proj"}) CHECK(text.find(fused_name) == std::string::npos);
  CHECK_FALSE(fs::exists(work / "again/adapter_config.unfused.json"));
  return changed;
}

TEST_CASE("Random adapters come back from their shards: exactly, trained further or not, or with the mean of fused") {
  std::size_t exact = 0, grouped = 0, changed = 0;
  for (const std::uint64_t seed : seeds(150)) {
    Random random(seed);
    const Scenario s = random_scenario(random);
    INFO("RESHARD_TEST_SEED=" << seed << ", tp " << s.mesh.tp << ", pp " << s.mesh.pp);
    const TempDir temp;
    const Format format = pick(random, 0, 3) == 0 ? Format::kXser : Format::kPytorch;
    shard_scenario(s, temp.path(), format);
    const auto job = plan_consolidate(consolidate_request(temp / "shards", temp / "whole"));
    CHECK(job->notes.empty());
    execute(*job, unsynced());
    CHECK((read_tensors(temp / "whole/adapter_model.safetensors") == expected_tensors(s)));
    CHECK(read_file(temp / "whole/adapter_config.json") == s.config.dump(2));
    exact += s.fuse == LoraFuse::kExact;
    grouped += s.grouped;
    if (s.fuse == LoraFuse::kExact && !s.tensors.empty()) changed += check_trained(s, temp.path(), format, random);
  }
  if (!has_all_seeds()) return;
  CHECK(exact > 40);
  CHECK(exact < 110);
  CHECK(grouped > 20);
  CHECK(changed > 200);
}

}  // namespace
}  // namespace reshard::test
