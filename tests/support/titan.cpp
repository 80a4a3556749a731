#include "support/titan.h"

#include <regex>
#include <utility>
#include <vector>

namespace reshard::test {
namespace {

/// torchtitan's names of v0.2.2, and what main has made of them since.
std::string titan_name(std::string name, bool is_main) {
  static const std::vector<std::pair<std::regex, std::string>> kRules = [] {
    std::vector<std::pair<std::regex, std::string>> rules;
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"^model\\.embed_tokens", "tok_embeddings"},
             {"^model\\.", ""},
             {"^lm_head", "output"},
             {"self_attn\\.q_a_proj", "attention.wq_a"},
             {"self_attn\\.q_a_layernorm", "attention.q_norm"},
             {"self_attn\\.q_b_proj", "attention.wq_b"},
             {"self_attn\\.kv_a_proj_with_mqa", "attention.wkv_a"},
             {"self_attn\\.kv_a_layernorm", "attention.kv_norm"},
             {"self_attn\\.kv_b_proj", "attention.wkv_b"},
             {"self_attn\\.([qkvo])_proj", "attention.w$1"},
             {"self_attn", "attention"},
             {"mlp\\.experts\\.\\d+\\.gate_proj\\.weight", "moe.experts.w1"},
             {"mlp\\.experts\\.\\d+\\.up_proj\\.weight", "moe.experts.w3"},
             {"mlp\\.experts\\.\\d+\\.down_proj\\.weight", "moe.experts.w2"},
             {"mlp\\.gate\\.e_score_correction_bias", "moe.expert_bias"},
             {"mlp\\.gate\\.", "moe.router.gate."},
             {"mlp\\.shared_experts", "moe.shared_experts"},
             {"mlp\\.", "feed_forward."},
             {"gate_proj", "w1"},
             {"up_proj", "w3"},
             {"down_proj", "w2"},
             {"input_layernorm", "attention_norm"},
             {"post_attention_layernorm", "ffn_norm"}})
      rules.emplace_back(std::regex(from), to);
    return rules;
  }();
  for (const auto& [from, to] : kRules) name = std::regex_replace(name, from, to);
  if (!is_main) return name;
  name = std::regex_replace(name, std::regex("^output"), "lm_head");
  name = std::regex_replace(name, std::regex("moe\\.experts\\.(w[13])$"), "moe.routed_experts.inner_experts.$1_EFD");
  name = std::regex_replace(name, std::regex("moe\\.experts\\.w2$"), "moe.routed_experts.inner_experts.w2_EDF");
  return std::regex_replace(name, std::regex("expert_bias$"), "expert_bias_E");
}

/// Row h * D + 2i + j is row h * D + j * D / 2 + i of `halves`.
TensorData interleaved(const TensorData& halves, std::uint64_t head_dim) {
  TensorData data = halves;
  const std::size_t row_bytes = halves.bytes.size() / halves.shape[0];
  for (std::uint64_t row = 0; row < halves.shape[0]; ++row) {
    const std::uint64_t head = row / head_dim * head_dim, in_head = row % head_dim;
    const std::uint64_t from = head + in_head % 2 * (head_dim / 2) + in_head / 2;
    data.bytes.replace(row * row_bytes, row_bytes, halves.bytes, from * row_bytes, row_bytes);
  }
  return data;
}

}  // namespace

std::map<std::string, TensorData> titan_tensors(const TensorMap& model, bool is_main, std::uint64_t rotary_head_dim,
                                                bool fuses_qkv) {
  std::map<std::string, TensorData> titan;
  std::map<std::pair<std::string, int>, TensorData> experts;
  static const std::regex kExpert("mlp\\.experts\\.(\\d+)\\.");
  for (const auto& [name, data] : model) {
    std::string other = titan_name(name, is_main);
    if (is_main && fuses_qkv)
      other = std::regex_replace(other, std::regex("attention\\.(w[qkv])\\."), "attention.qkv_linear.$1.");
    std::smatch found;
    if (std::regex_search(name, found, kExpert)) {
      experts[{other, std::stoi(found[1])}] = data;
      continue;
    }
    const bool permutes = rotary_head_dim > 0 && std::regex_search(name, std::regex("[qk]_proj\\.weight$"));
    titan[other] = permutes ? interleaved(data, rotary_head_dim) : data;
  }
  for (const auto& [key, data] : experts) {  // by number
    TensorData& stack = titan[key.first];
    if (stack.shape.empty()) {
      stack = {data.dtype, {0}, {}};
      for (const std::uint64_t size : data.shape) stack.shape.push_back(size);
    }
    ++stack.shape[0];
    stack.bytes += data.bytes;
  }
  return titan;
}

}  // namespace reshard::test
