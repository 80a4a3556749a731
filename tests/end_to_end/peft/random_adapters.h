#pragma once

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/models.h"
#include "support/oracle.h"
#include "support/trials.h"

/// Random adapters of random models, as PEFT would have them.
namespace reshard::test {

using nlohmann::json;

struct Linear {
  std::string name;  // "self_attn.q_proj"
  std::uint64_t out;
  std::uint64_t in;
};

inline std::vector<Linear> linears_of(const TinyModel& model) {
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
  nlohmann::ordered_json config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
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

inline std::string layer_prefix(std::uint64_t layer) {
  return "base_model.model.model.layers." + std::to_string(layer) + ".";
}

/// Numbers that a mean of three does not round twice.
inline TensorData random_floats(Random& random, const Dims& shape) {
  TensorData tensor{DType::kF32, shape, {}};
  for (std::uint64_t i = 0; i < num_elems(shape).value(); ++i) {
    const float value = static_cast<float>(pick(random, 0, 1 << 20)) / 4096.0f - 100.0f;
    tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return tensor;
}

inline void add_extras(Scenario& s, Random& random) {
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
inline void draw_ranks(Scenario& s, Random& random) {
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

inline Scenario random_scenario(Random& random) {
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

}  // namespace reshard::test
