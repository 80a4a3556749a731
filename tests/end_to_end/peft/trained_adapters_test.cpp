// Adapters that were sharded exactly, trained further on their fused linears and consolidated: what PEFT makes of the
// consolidated directory is what was trained.

#include <regex>

#include "end_to_end/peft/random_adapters.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

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
  const auto at = [](const TensorData& tensor, std::uint64_t i) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
    return static_cast<double>(value);
  };
  std::vector<double> out(rows * columns);
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < columns; ++j) {
      for (std::uint64_t k = 0; k < inner; ++k) out[i * columns + j] += at(b, i * inner + k) * at(a, k * columns + j);
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
  ShardRequest request = shard_request(work / "model", work / "shards", static_cast<std::uint32_t>(s.mesh.tp),
                                       static_cast<std::uint32_t>(s.mesh.pp));
  request.target.options.set_flag("fuse-qkv", s.mesh.fuse_qkv);
  request.target.layout = layout("optimum"), request.target.format = format;
  request.adapters = {work / "peft"};
  request.lora_fuse = s.fuse;
  shard(request);
}

/// How a trainer leaves adapter_config.json.
enum class Saved { kInPlace, kElsewhere, kByPeft };

TEST_CASE("What PEFT makes of an exact adapter that was trained further is what was trained, whatever its patterns") {
  std::size_t changed = 0;
  for (const std::uint64_t seed : seeds(120)) {
    Random random(seed);
    Scenario s = random_scenario(random);
    if (s.fuse != LoraFuse::kExact || s.tensors.empty()) continue;
    const auto saved = static_cast<Saved>(pick(random, 0, 2));
    INFO("RESHARD_TEST_SEED=" << seed << ", tp " << s.mesh.tp << ", pp " << s.mesh.pp << ", saved "
                              << static_cast<int>(saved));
    const TempDir temp;
    const Format format = pick(random, 0, 3) == 0 ? Format::kXser : Format::kPytorch;
    shard_scenario(s, temp / "exact", format);
    const Scenario trained = trained_further(s, random);
    shard_scenario(trained, temp / "trained", format);
    const fs::path adapter = temp / "exact/shards/adapter_default";
    fs::remove_all(adapter / "adapter_shards");
    fs::rename(temp / "trained/shards/adapter_default/adapter_shards", adapter / "adapter_shards");
    if (saved != Saved::kInPlace) fs::remove(adapter / "adapter_config.unfused.json");
    OrderedJson fused = OrderedJson::parse(read_file(adapter / "adapter_config.json"));
    if (saved == Saved::kByPeft)  // with sorted keys, at all levels
      write_file(adapter / "adapter_config.json", json::parse(fused.dump()).dump(2));

    ConsolidateRequest back;
    back.source.path = temp / "exact/shards";
    back.output_directory = temp / "again";
    consolidate(back);
    const TensorMap again = read_tensors(temp / "again/adapter_model.safetensors");
    CHECK((again == trained.tensors));
    const OrderedJson config = OrderedJson::parse(read_file(temp / "again/adapter_config.json"));
    for (const auto& [name, a] : again) {
      if (!name.ends_with(".lora_A.weight")) continue;
      const std::string module = module_of(name);
      INFO(module << "\n" << config.dump() << "\n" << fused.dump());
      const TensorData& b = again.at(name.substr(0, name.size() - 13) + "lora_B.weight");
      const PeftScale was = peft_scale(fused, trained_as(s, module));
      const PeftScale is = peft_scale(config, module);
      CHECK(is.r == static_cast<double>(a.shape[0]));
      CHECK((product(b, a, is.scale) == product(b, a, was.scale)));
      changed += module == trained_as(s, module) ? 0 : 1;
    }
    CHECK(read_file(temp / "again/adapter_config.json").find("gate_up_proj") == std::string::npos);
    CHECK(read_file(temp / "again/adapter_config.json").find("qkv_proj") == std::string::npos);
    CHECK_FALSE(fs::exists(temp / "again/adapter_config.unfused.json"));
  }
  if (has_all_seeds()) CHECK(changed > 200);
}

}  // namespace
}  // namespace reshard::test
