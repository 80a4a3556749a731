#include "support/families.h"

#include <algorithm>
#include <cmath>

#include "support/catch.h"
#include "support/models.h"

namespace reshard::test {

namespace fs = std::filesystem;

namespace {

DType dtype_of(const std::string& name) {
  if (name.ends_with("_blocks") || name.ends_with("_scales") || name.ends_with("attention.bias")) return DType::kU8;
  return name.ends_with("e_score_correction_bias") ? DType::kF32 : DType::kBF16;
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

}  // namespace

std::vector<FamilyCase> family_cases() {
  std::vector<FamilyCase> all;
  for (const auto& entry : fs::directory_iterator(testdata("families")))
    all.push_back({entry.path().stem().string(), nlohmann::json::parse(read_file(entry.path()))});
  std::sort(all.begin(), all.end(), [](const FamilyCase& a, const FamilyCase& b) { return a.name < b.name; });
  return all;
}

FamilyCase family_case(const std::string& name) {
  return {name, nlohmann::json::parse(read_file(testdata("families") / (name + ".json")))};
}

TensorMap write_case(const FamilyCase& c, const fs::path& directory) {
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

TensorData slices(const TensorData& whole, std::size_t dim, const std::vector<Slice>& parts,
                  const std::string& filler) {
  std::uint64_t outer = 1, inner = bits(whole.dtype) / 8;
  for (std::size_t d = 0; d < dim; ++d) outer *= whole.shape[d];
  for (std::size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  TensorData out{whole.dtype, whole.shape, {}};
  out.shape[dim] = 0;
  for (const Slice& part : parts) out.shape[dim] += part.end - part.begin;
  for (std::uint64_t o = 0; o < outer; ++o)
    for (const Slice& part : parts) {
      const std::uint64_t end = std::min(part.end, whole.shape[dim]), begin = std::min(part.begin, end);
      out.bytes += whole.bytes.substr((o * whole.shape[dim] + begin) * inner, (end - begin) * inner);
      REQUIRE((end == part.end || !filler.empty()));
      for (std::uint64_t i = (part.end - part.begin - (end - begin)) * inner; i > 0; i -= filler.size())
        out.bytes += filler;
    }
  return out;
}

TensorData rank_slice(const TensorData& whole, std::optional<std::size_t> dim, std::uint64_t tp, std::uint64_t rank,
                      std::uint64_t matrices) {
  if (!dim) return whole;
  std::vector<Slice> parts;
  const std::uint64_t size = whole.shape[*dim] / (matrices * tp);
  for (std::uint64_t m = 0; m < matrices; ++m) parts.push_back({(m * tp + rank) * size, (m * tp + rank + 1) * size});
  return slices(whole, *dim, parts);
}

TensorData rank_part(const FamilyCase& c, const nlohmann::json& tensor, const TensorData& whole, std::uint64_t tp,
                     std::uint64_t rank) {
  const int dim = tensor["split"].get<int>();
  if (dim < 0) return whole;
  const auto name = tensor["name"].get<std::string>();
  const auto size = static_cast<std::int64_t>(whole.shape[static_cast<std::size_t>(dim)]);
  std::vector<Slice> parts;
  std::uint64_t at = 0;
  for (const std::int64_t matrix : packed(c.model_type(), name, size)) {
    const auto elems = static_cast<std::uint64_t>(std::abs(matrix));
    if (matrix < 0)
      parts.push_back({at, at + elems});
    else
      parts.push_back({at + elems / tp * rank, at + elems / tp * (rank + 1)});
    at += elems;
  }
  return slices(whole, static_cast<std::size_t>(dim), parts);
}

FamilyCase with_six_experts(const std::string& name) {
  FamilyCase c = family_case(name);
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
  return slices(whole, 0, {{ep_rank * rows, (ep_rank + 1) * rows}});
}

}  // namespace reshard::test
