#include "support/planned.h"

#include <nlohmann/json.hpp>

#include "support/models.h"

namespace reshard::test {

namespace fs = std::filesystem;
using nlohmann::json;

const char* const kPlannedConfig = R"({
  "model_type": "newcomer",
  "num_hidden_layers": 3,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "base_model_tp_plan": {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_up_proj": "packed_colwise",
    "layers.*.mlp.down_proj": "rowwise",
    "layers.*.experts.up": "packed_rowwise",
    "layers.*.experts.*.w1": "colwise",
    "layers.*.q_norm": "replicated_with_grad_allreduce",
    "embed_positions": "embedding_colwise"
  },
  "_tp_plan": {"lm_head": "colwise_rep"},
  "base_model_pp_plan": {
    "embed_positions": [["position_ids"], ["positions"]],
    "embed_tokens": [["input_ids"], ["inputs_embeds"]],
    "final": [["hidden_states"], ["hidden_states"]],
    "layers": [["hidden_states", "attention_mask"], ["hidden_states"]]
  }
})";

std::vector<Planned> tensors_of(const std::string& prefix, bool head) {
  std::vector<Planned> all{{prefix + "embed_tokens.weight", {10, 16}},
                           {prefix + "embed_positions.weight", {5, 16}, 1},
                           {prefix + "final.weight", {16}}};
  for (const std::string number : {"0", "1", "2"}) {
    const std::string layer = prefix + "layers." + number + ".";
    const std::vector<Planned> of_layer{{layer + "self_attn.q_proj.weight", {32, 16}, 0},
                                        {layer + "self_attn.q_proj.bias", {32}, 0},
                                        {layer + "self_attn.k_proj.weight", {16, 16}, 0},
                                        {layer + "self_attn.v_proj.weight", {16, 16}, 0},
                                        {layer + "self_attn.o_proj.weight", {16, 32}, 1},
                                        {layer + "self_attn.o_proj.bias", {16}},
                                        {layer + "mlp.gate_up_proj.weight", {48, 16}, 0, 2},
                                        {layer + "mlp.gate_up_proj.bias", {48}, 0, 2},
                                        {layer + "mlp.down_proj.weight", {16, 24}, 1},
                                        {layer + "experts.up", {3, 2, 32}, 2, 2},
                                        {layer + "experts.0.w1.weight", {8, 2}, 0},
                                        {layer + "experts.11.w1.weight", {8, 2}, 0},
                                        {layer + "q_norm.weight", {4}},
                                        {layer + "scale", {}}};
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  if (head) all.push_back({"lm_head.weight", {40, 16}, 0});
  return all;
}

TensorMap write_planned(const fs::path& directory, const std::vector<Planned>& all, const json& config) {
  Random random(5);
  TensorMap tensors;
  for (const Planned& one : all) tensors[one.name] = random_tensor(random, DType::kBF16, one.shape);
  fs::create_directories(directory);
  write_file(directory / "config.json", config.dump(2));
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

}  // namespace reshard::test
