// Checkpoints of torch.distributed.checkpoint that the test makes itself: any shapes in any chunks, and the names and
// orders of other programs.

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,    DType::kI32,
                             DType::kI16, DType::kI8,  DType::kU8,  DType::kBool, DType::kF8E4M3, DType::kF8E5M2};

/// As torch.chunk has it: ceil(size / ranks) rows each, the last ones fewer or none.
std::vector<dcp::Part> chunks(const dcp::Part& part, std::size_t dim, std::uint64_t ranks) {
  std::vector<dcp::Part> parts;
  const std::uint64_t rows = (part.size[dim] + ranks - 1) / ranks;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    dcp::Part one = part;
    const std::uint64_t begin = std::min(rank * rows, part.size[dim]);
    one.begin[dim] += begin;
    one.size[dim] = std::min(rows, part.size[dim] - begin);
    one.rank = part.rank * static_cast<std::uint32_t>(ranks) + static_cast<std::uint32_t>(rank);
    parts.push_back(one);
  }
  return parts;
}

/// A mesh of one or two dims, or boxes of any sizes.
std::vector<dcp::Part> random_parts(Random& random, const Dims& shape) {
  std::vector<dcp::Part> parts{{Dims(shape.size()), shape, static_cast<std::uint32_t>(pick(random, 0, 1))}};
  if (shape.empty()) return parts;
  for (std::uint64_t cuts = pick(random, 0, 2); cuts > 0; --cuts) {
    const std::size_t dim = pick(random, 0, shape.size() - 1);
    const std::uint64_t ranks = pick(random, 2, 4);
    std::vector<dcp::Part> all;
    for (const dcp::Part& part : parts)
      for (dcp::Part& one : chunks(part, dim, ranks)) all.push_back(std::move(one));
    parts = std::move(all);
  }
  // Of empty chunks that begin at one place, torch keeps one.
  std::erase_if(parts, [](const dcp::Part& part) { return std::count(part.size.begin(), part.size.end(), 0) > 0; });
  if (parts.empty()) parts = {{Dims(shape.size()), shape, 0}};
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

TEST_CASE("Tensors of any dtype and shape come back from chunks on any mesh") {
  for (const std::uint64_t seed : seeds(60)) {
    CAPTURE(seed);
    Random random(seed);
    TensorMap tensors;
    std::vector<dcp::Whole> stored;
    for (std::uint64_t i = pick(random, 1, 12); i > 0; --i) {
      Dims shape;
      for (std::uint64_t d = pick(random, 0, 4); d > 0; --d) shape.push_back(pick(random, d == 1 ? 0 : 1, 6));
      const DType dtype = kDTypes[pick(random, 0, std::size(kDTypes) - 1)];
      const std::string name = fmt::format("part.{}.tensor", i);
      tensors[name] = random_tensor(random, dtype, shape);
      stored.push_back({name, tensors[name], random_parts(random, shape)});
      if (i % 3 == 0)
        stored.push_back({"optimizer.state." + name + ".exp_avg", random_tensor(random, DType::kF32, shape),
                          random_parts(random, shape)});
    }
    const TempDir temp;
    dcp::write(temp / "dcp", stored);
    convert(convert_request(temp / "dcp", temp / "out"));
    CHECK((read_model(temp / "out") == tensors));
  }
}

TEST_CASE("Metadata of each rank is read together, and tensors that several ranks have are compared") {
  Random random(3);
  const TempDir temp;
  TensorMap tensors{{"part.a", random_tensor(random, DType::kF32, {7, 3})},
                    {"part.b", random_tensor(random, DType::kBF16, {5})}};
  std::vector<dcp::Whole> stored{{"part.a", tensors["part.a"], chunks({{0, 0}, {7, 3}, 0}, 0, 3)},
                                 {"part.b", tensors["part.b"], {}}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) stored[1].parts.push_back({{0}, {5}, rank});
  for (std::uint32_t rank = 0; rank < 3; ++rank) dcp::write_rank(temp / "dcp", stored, rank);
  convert(convert_request(temp / "dcp", temp / "out"));
  CHECK((read_model(temp / "out") == tensors));

  stored[1].data.bytes[3] = static_cast<char>(stored[1].data.bytes[3] ^ 1);
  dcp::write_rank(temp / "dcp", stored, 2);
  const Error differs = error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); });
  CHECK(differs.kind() == ErrorKind::kBadInput);
  CHECK(differs.tensor() == "part.b");

  stored[1].data = random_tensor(random, DType::kF16, {5});
  dcp::write_rank(temp / "dcp", stored, 2);
  const Error dtype = error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); });
  CHECK(dtype.path() == (temp / "dcp/__2.metadata").string());
  CHECK_THAT(dtype.what(), Says("is float16 [5], but bfloat16 [5] by other ranks"));

  fs::remove(temp / "dcp/__2.metadata");
  CHECK_THAT(error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); }).what(),
             Says("its 2 chunks have 18 of its 21 elements"));
}

TEST_CASE("A tied head that is stored in full is compared with the embedding and left out") {
  TinyModel tiny;
  tiny.tied = true;
  Random random(1);
  TensorMap model = random_tensors(tiny, random);
  model.erase("lm_head.weight");
  const TempDir temp;
  write_model(temp / "model", tiny, model);
  const auto stored = [&](char head_byte) {
    std::vector<dcp::Whole> all;
    for (const auto& [name, data] : model) all.push_back({"model." + name, data, random_parts(random, data.shape)});
    TensorData head = model.at("model.embed_tokens.weight");
    head.bytes[40] = static_cast<char>(head.bytes[40] ^ head_byte);
    all.push_back({"model.lm_head.weight", head, chunks({{0, 0}, head.shape, 0}, 0, 3)});
    return all;
  };
  ConsolidateRequest request;
  request.source.path = temp / "dcp";
  request.source.config = temp / "model";
  request.output_directory = temp / "out";
  dcp::write(temp / "dcp", stored(0));
  const auto job = plan_consolidate(local_storage(), request);
  CHECK(std::count_if(job->notes.begin(), job->notes.end(), [](const std::string& note) {
          return note.find("lm_head.weight is tied to the embedding") != note.npos;
        }) == 1);
  consolidate(request);
  CHECK((read_model(temp / "out") == model));
  fs::remove_all(temp / "out");
  fs::remove_all(temp / "dcp");
  dcp::write(temp / "dcp", stored(1));
  const Error error = error_of([&] { consolidate(request); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.tensor() == "model.lm_head.weight");
  CHECK_FALSE(fs::exists(temp / "out"));
}

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

/// The tensors of a model as torchtitan stores them; `rotary_head_dim` is 0 where rows stay.
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

/// Writes these in random chunks beside a config.json, and holds what convert makes of them against `model`.
void check_titan(Random& random, const TensorMap& model, const std::map<std::string, TensorData>& titan,
                 const fs::path& config, bool with_bias_of_experts) {
  const TempDir temp;
  std::vector<dcp::Whole> stored;
  for (const auto& [name, data] : titan) stored.push_back({name, data, random_parts(random, data.shape)});
  if (with_bias_of_experts)
    stored.push_back({"layers.1.moe.expert_bias", random_tensor(random, DType::kF32, {3}), {{{0}, {3}, 0}}});
  dcp::write(temp / "step-7", stored);
  ConvertRequest request = convert_request(temp / "step-7", temp / "out");
  request.source.config = config;
  convert(request);
  CHECK((read_model(temp / "out") == model));
}

TEST_CASE("torchtitan's names of both generations are read, with experts in stacks") {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "deepseek_v3_no_q_lora"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(3)) {
        CAPTURE(name, is_main, seed);
        Random random(seed);
        const TempDir temp;
        const bool is_qwen = std::string(name) == "qwen3_moe";
        const TensorMap model = write_case(family_case(name), temp / "model");
        check_titan(random, model, titan_tensors(model, is_main, 0, is_qwen), temp / "model", is_qwen);
      }
}

TEST_CASE("torchtitan's Llama has its rotary rows in pairs, and its Qwen3 has not") {
  for (const char* model_type : {"llama", "qwen3"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(10)) {
        CAPTURE(model_type, is_main, seed);
        Random random(seed);
        TinyModel tiny;
        tiny.model_type = model_type;
        tiny.head_dim = 2 * pick(random, 1, 4);
        tiny.heads = 2 * pick(random, 1, 2);
        tiny.kv_heads = tiny.heads / pick(random, 1, 2);
        const TempDir temp;
        const TensorMap model = random_tensors(tiny, random);
        write_model(temp / "model", tiny, model);
        const std::uint64_t rotary = model_type == std::string("llama") ? tiny.head_dim : 0;
        check_titan(random, model, titan_tensors(model, is_main, rotary, true), temp / "model", false);
      }
}

}  // namespace
}  // namespace reshard::test
