// Random adapters of random models through all that shards and consolidates them.

#include <cstring>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/models.h"
#include "support/oracle.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

using nlohmann::json;

struct Linear {
  std::string name;  // "self_attn.q_proj"
  std::uint64_t out;
  std::uint64_t in;
};

std::vector<Linear> linears_of(const TinyModel& model) {
  const std::uint64_t query = model.heads * model.head_dim;
  const std::uint64_t key = model.kv_heads * model.head_dim;
  return {{"self_attn.q_proj", query, model.hidden},
          {"self_attn.k_proj", key, model.hidden},
          {"self_attn.v_proj", key, model.hidden},
          {"self_attn.o_proj", model.hidden, query},
          {"mlp.gate_proj", model.intermediate, model.hidden},
          {"mlp.up_proj", model.intermediate, model.hidden},
          {"mlp.down_proj", model.hidden, model.intermediate}};
}

/// A model, a mesh, and an adapter that fits both.
struct Scenario {
  TinyModel model;
  OracleOptions mesh;
  bool grouped = false;  // key/value heads do not divide
  LoraFuse fuse = LoraFuse::kMean;
  json config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
  TensorMap tensors;
  std::vector<std::vector<std::string>> groups;  // linears that are joined
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
    s.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = random_floats(random, {2, s.model.vocab});
    s.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = random_floats(random, {s.model.hidden, 2});
  }
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
  std::map<std::string, std::uint64_t> leader;  // linear → its group
  for (std::size_t g = 0; g < s.groups.size(); ++g)
    for (const std::string& linear : s.groups[g]) leader[linear] = g;

  std::map<std::string, std::uint64_t> ranks;
  for (const Linear& linear : linears_of(s.model)) {
    const std::uint64_t r = pick(random, 1, 3);
    const bool joined = leader.count(linear.name) > 0;
    const std::string& first = joined ? s.groups[leader[linear.name]].front() : linear.name;
    ranks[linear.name] = joined && s.fuse == LoraFuse::kMean && ranks.count(first) ? ranks[first] : r;
    const std::string key = linear.name.substr(linear.name.find('.') + 1);
    s.config["rank_pattern"][key] = ranks[linear.name];
    s.config["alpha_pattern"][key] = 2 * ranks[linear.name];
  }
  for (std::uint64_t layer = 0; layer < s.model.layers; ++layer) {
    std::map<std::string, bool> adapted;  // by group or linear
    std::map<std::string, bool> biased;
    for (const Linear& linear : linears_of(s.model)) {
      const bool joined = leader.count(linear.name) > 0;
      const std::string key = joined ? s.groups[leader[linear.name]].front() : linear.name;
      if (!adapted.count(key)) {
        adapted[key] = pick(random, 0, 3) > 0;
        biased[key] = pick(random, 0, 3) == 0 && !(s.grouped && key == "self_attn.q_proj");
      }
      if (!adapted[key]) continue;
      const std::string stem = layer_prefix(layer) + linear.name;
      s.tensors[stem + ".lora_A.weight"] = random_floats(random, {ranks[linear.name], linear.in});
      s.tensors[stem + ".lora_B.weight"] = random_floats(random, {linear.out, ranks[linear.name]});
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

TEST_CASE("Random adapters come back from their shards: exactly, or with the mean of what was joined") {
  std::size_t exact = 0;
  std::size_t grouped = 0;
  for (const std::uint64_t seed : seeds(150)) {
    Random random(seed);
    const Scenario s = random_scenario(random);
    INFO("RESHARD_TEST_SEED=" << seed << ", tp " << s.mesh.tp << ", pp " << s.mesh.pp);
    const TempDir temp;
    write_file(temp / "model/config.json", s.model.config().dump());
    write_safetensors(temp / "peft/adapter_model.safetensors", s.tensors);
    write_file(temp / "peft/adapter_config.json", s.config.dump(2));
    ShardRequest request = shard_request(temp / "model", temp / "shards", static_cast<std::uint32_t>(s.mesh.tp),
                                         static_cast<std::uint32_t>(s.mesh.pp));
    request.sharding.attention.fuse_qkv = s.mesh.fuse_qkv;
    request.sharding.form = {ShardsKind::kOptimum, pick(random, 0, 3) == 0 ? Format::kXser : Format::kPytorch};
    request.adapters = {temp / "peft"};
    request.lora_fuse = s.fuse;
    shard(request);
    ConsolidateRequest back;
    back.checkpoint_directory = temp / "shards";
    back.output_directory = temp / "again";
    const auto job = plan_consolidate(back);
    CHECK(job->notes.empty());
    execute(*job, unsynced());
    CHECK((read_tensors(temp / "again/adapter_model.safetensors") == expected_tensors(s)));
    CHECK(read_file(temp / "again/adapter_config.json") == s.config.dump(2));
    exact += s.fuse == LoraFuse::kExact ? 1 : 0;
    grouped += s.grouped ? 1 : 0;
  }
  if (!has_all_seeds()) return;
  CHECK(exact > 40);
  CHECK(exact < 110);
  CHECK(grouped > 20);
}

}  // namespace
}  // namespace reshard::test
