#include "support/inference_oracle.h"

#include "reshard/specs/parallel/head_slots.h"

namespace reshard::test {
namespace {

/// Rows (dim 0) or columns (dim 1) of a matrix or vector, by number; one that there is not is padded.
TensorData taken(const TensorData& tensor, std::size_t dim, const std::vector<std::uint64_t>& indices,
                 const std::string& filler) {
  const std::size_t elem = bits(tensor.dtype) / 8;
  const bool matrix = tensor.shape.size() == 2;
  const std::uint64_t rows = tensor.shape[0];
  const std::uint64_t columns = matrix ? tensor.shape[1] : 1;
  TensorData part{tensor.dtype, tensor.shape, {}};
  part.shape[dim] = indices.size();
  const auto at = [&](std::uint64_t row, std::uint64_t column) {
    part.bytes += row < rows && column < columns ? tensor.bytes.substr((row * columns + column) * elem, elem) : filler;
  };
  if (dim == 0)
    for (const std::uint64_t row : indices)
      for (std::uint64_t column = 0; column < columns; ++column) at(row, column);
  else
    for (std::uint64_t row = 0; row < rows; ++row)
      for (const std::uint64_t column : indices) at(row, column);
  return part;
}

std::vector<std::uint64_t> even_part(std::uint64_t size, std::uint64_t tp, std::uint64_t rank) {
  const std::uint64_t each = (size + tp - 1) / tp;
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = rank * each; i < (rank + 1) * each; ++i) indices.push_back(i);
  return indices;
}

std::vector<std::uint64_t> head_part(const std::vector<std::uint32_t>& slots, std::uint64_t head_dim, std::uint64_t tp,
                                     std::uint64_t rank) {
  std::vector<std::uint64_t> indices;
  for (std::uint64_t slot = rank * slots.size() / tp; slot < (rank + 1) * slots.size() / tp; ++slot)
    for (std::uint64_t i = 0; i < head_dim; ++i) indices.push_back(slots[slot] * head_dim + i);
  return indices;
}

const std::string kZero(2, '\0');
const std::string kLowest = "\x7f\xff";  // of bfloat16: -3.39e38

TensorData rank_number(std::uint64_t rank) {
  return {DType::kI32, {1}, {static_cast<char>(rank), '\0', '\0', '\0'}};
}

}  // namespace

TensorMap expected_nxdi(const TinyModel& model, const TensorMap& originals, std::uint64_t tp, std::uint64_t rank,
                        bool fused, bool vocab_parallel) {
  const HeadSlots slots =
      inference_head_slots(static_cast<std::uint32_t>(model.heads), static_cast<std::uint32_t>(model.kv_heads),
                           static_cast<std::uint32_t>(tp));
  const auto query = head_part(slots.query, model.head_dim, tp, rank);
  const auto key = head_part(slots.key_value, model.head_dim, tp, rank);
  TensorMap tensors{{"rank_util.rank", rank_number(rank)}};
  if (vocab_parallel) tensors.emplace("embed_tokens.rank_util.rank", rank_number(rank));
  for (std::uint64_t layer = 0; layer < model.layers; ++layer)
    tensors.emplace("layers." + std::to_string(layer) + ".self_attn.rank_util.rank", rank_number(rank));
  TensorMap fused_rows;
  for (const char* linear : {"q_proj", "k_proj", "v_proj"})
    for (const auto& [full_name, tensor] : originals) {
      const auto found = full_name.find(std::string("self_attn.") + linear);
      if (found == std::string::npos) continue;
      std::string name = full_name.substr(6);
      const TensorData part = taken(tensor, 0, linear == std::string("q_proj") ? query : key, kZero);
      if (!fused) {
        tensors[name.insert(name.find(linear), "qkv_proj.")] = part;
        continue;
      }
      name.replace(name.find(linear), 6, "qkv_proj.Wqkv");
      const auto [joined, is_new] = tensors.emplace(name, part);
      if (is_new) continue;
      joined->second.shape[0] += part.shape[0];
      joined->second.bytes += part.bytes;
    }
  for (const auto& [full_name, tensor] : originals) {
    std::string name = full_name.starts_with("model.") ? full_name.substr(6) : full_name;
    const auto has = [&](const char* what) { return name.find(what) != std::string::npos; };
    const bool bias = name.ends_with(".bias");
    if (has("q_proj") || has("k_proj") || has("v_proj")) continue;
    if (has("embed_tokens"))
      tensors[name] =
          taken(tensor, vocab_parallel ? 0 : 1, even_part(tensor.shape[vocab_parallel ? 0 : 1], tp, rank), kZero);
    else if (has("lm_head") || has("gate_proj") || has("up_proj"))
      tensors[name] = taken(tensor, 0, even_part(tensor.shape[0], tp, rank), bias ? kLowest : kZero);
    else if (has("down_proj") && !bias)
      tensors[name] = taken(tensor, 1, even_part(tensor.shape[1], tp, rank), kZero);
    else if (has("o_proj"))
      tensors[name.insert(name.find("o_proj"), "o_proj.")] = bias ? tensor : taken(tensor, 1, query, kZero);
    else if (has("_norm.") && has("self_attn"))
      tensors[name.replace(name.find("_norm."), 6, "_layernorm.")] = tensor;
    else
      tensors[name] = tensor;
  }
  if (model.tied)
    tensors["lm_head.weight"] =
        taken(originals.at("model.embed_tokens.weight"), 0, even_part(model.vocab, tp, rank), kZero);
  return tensors;
}

TensorMap expected_presharded(const TensorMap& originals, std::uint64_t tp, std::uint64_t rank) {
  TensorMap tensors;
  for (const auto& [name, original] : originals) {
    const auto has = [&, &full = name](const char* what) { return full.find(what) != std::string::npos; };
    const bool bias = name.ends_with(".bias");
    const bool rows = has("embed_tokens") || has("lm_head") || has("q_proj") || has("k_proj") || has("v_proj") ||
                      has("gate_proj") || has("up_proj");
    const bool columns = (has("o_proj") || has("down_proj")) && !bias;
    if (rows)
      tensors[name] = taken(original, 0, even_part(original.shape[0], tp, rank), bias ? kLowest : kZero);
    else if (columns)
      tensors[name] = taken(original, 1, even_part(original.shape[1], tp, rank), kZero);
    else
      tensors[name] = original;
  }
  return tensors;
}

}  // namespace reshard::test
