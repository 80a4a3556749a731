// Writes sparse checkpoints: all files, names, shapes and headers are real, but the tensors' bytes take no disk space.
// Serves to measure the planning of models that do not fit on any available disk.
//
//   make_holes shards MODEL_DIR OUT_DIR --tp 64 --pp 4    a model's shards, as `reshard shard` writes them
//   make_holes experts OUT_DIR                            a mixture of experts with DeepSeek-V3's names and sizes
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/plan/plan.h"

namespace {

namespace fs = std::filesystem;
using reshard::DType;

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

/// CRCs in torch's files are those of empty data; no reader checks them.
void write_file_of_holes(const fs::path& path, const std::vector<reshard::FilePart>& parts, std::uint64_t size_bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  bool written = descriptor >= 0;
  for (const reshard::FilePart& part : parts)
    written = written && ::pwrite(descriptor, part.bytes.data(), part.bytes.size(),
                                  static_cast<off_t>(part.offset_bytes)) == static_cast<ssize_t>(part.bytes.size());
  written = written && ::ftruncate(descriptor, static_cast<off_t>(size_bytes)) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!written) throw std::system_error(error, std::generic_category(), path.string());
}

void write_layout(const reshard::TargetMap& map, const std::vector<reshard::TextFile>& text_files,
                  const fs::path& out_dir) {
  std::uint64_t bytes = 0;
  fs::create_directories(out_dir);
  for (const reshard::TargetFile& file : map.files) {
    fs::create_directories((out_dir / file.path).parent_path());
    write_file_of_holes(out_dir / file.path, target_parts(map, file), file.size_bytes);
    bytes += file.size_bytes;
  }
  for (const reshard::TextFile& file : text_files) {
    fs::create_directories((out_dir / file.path).parent_path());
    write_text(out_dir / file.path, file.text);
  }
  fmt::print("{}: {} tensors in {} files, {} of holes\n", out_dir.string(), map.stored.size(), map.files.size(),
             reshard::format_bytes(bytes));
}

struct ShardOptions {
  fs::path model_dir;
  fs::path out_dir;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::string format = "safetensors";
};

void make_shards(const ShardOptions& options) {
  reshard::Request request;
  request.source.path = options.model_dir;
  request.output_directory = options.out_dir;
  request.target.tp = options.tp;
  request.target.pp = options.pp;
  if (options.format == "pytorch") request.target.format = reshard::Format::kPytorch;
  if (options.format == "xser") request.target.format = reshard::Format::kXser;
  const auto job = reshard::plan_shard(reshard::all_files(), request);
  write_layout(job->target, job->text_files, options.out_dir);
  for (const reshard::CopiedFile& file : job->copied_files) fs::copy_file(file.source, options.out_dir / file.path);
}

/// DeepSeek-V3's state dict: float8 matrices with a float32 scale per block of 128 × 128.
class ExpertsModel {
 public:
  std::vector<reshard::LogicalTensor> tensors() {
    add("model.embed_tokens.weight", DType::kBF16, {kVocab, kHidden});
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) add_layer(layer);
    add_prediction_layer(kLayers);
    add("model.norm.weight", DType::kBF16, {kHidden});
    add("lm_head.weight", DType::kBF16, {kVocab, kHidden});
    return std::move(tensors_);
  }

 private:
  static constexpr std::uint64_t kHidden = 7168;
  static constexpr std::uint64_t kIntermediate = 18432;
  static constexpr std::uint64_t kExpertIntermediate = 2048;
  static constexpr std::uint64_t kVocab = 129280;
  static constexpr std::uint64_t kLayers = 61;
  static constexpr std::uint64_t kDenseLayers = 3;
  static constexpr std::uint64_t kExperts = 256;
  static constexpr std::uint64_t kHeads = 128;
  static constexpr std::uint64_t kQueryRank = 1536;
  static constexpr std::uint64_t kKeyValueRank = 512;
  static constexpr std::uint64_t kRope = 64;
  static constexpr std::uint64_t kHeadDim = 128;  // without rope
  static constexpr std::uint64_t kScaleBlock = 128;

  void add(const std::string& name, DType dtype, const reshard::Dims& shape) {
    tensors_.push_back({name, dtype, shape});
  }

  void add_linear(const std::string& name, std::uint64_t out, std::uint64_t in) {
    const auto blocks = [](std::uint64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; };
    add(name + ".weight", DType::kF8E4M3, {out, in});
    add(name + ".weight_scale_inv", DType::kF32, {blocks(out), blocks(in)});
  }

  void add_mlp(const std::string& name, std::uint64_t intermediate) {
    add_linear(name + ".gate_proj", intermediate, kHidden);
    add_linear(name + ".up_proj", intermediate, kHidden);
    add_linear(name + ".down_proj", kHidden, intermediate);
  }

  void add_layer(std::uint64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string attention = prefix + "self_attn.";
    add_linear(attention + "q_a_proj", kQueryRank, kHidden);
    add(attention + "q_a_layernorm.weight", DType::kBF16, {kQueryRank});
    add_linear(attention + "q_b_proj", kHeads * (kHeadDim + kRope), kQueryRank);
    add_linear(attention + "kv_a_proj_with_mqa", kKeyValueRank + kRope, kHidden);
    add(attention + "kv_a_layernorm.weight", DType::kBF16, {kKeyValueRank});
    add_linear(attention + "kv_b_proj", kHeads * 2 * kHeadDim, kKeyValueRank);
    add_linear(attention + "o_proj", kHidden, kHeads * kHeadDim);
    add(prefix + "input_layernorm.weight", DType::kBF16, {kHidden});
    add(prefix + "post_attention_layernorm.weight", DType::kBF16, {kHidden});
    if (layer < kDenseLayers) return add_mlp(prefix + "mlp", kIntermediate);
    add(prefix + "mlp.gate.weight", DType::kBF16, {kExperts, kHidden});
    add(prefix + "mlp.gate.e_score_correction_bias", DType::kF32, {kExperts});
    for (std::uint64_t expert = 0; expert < kExperts; ++expert)
      add_mlp(fmt::format("{}mlp.experts.{}", prefix, expert), kExpertIntermediate);
    add_mlp(prefix + "mlp.shared_experts", kExpertIntermediate);
  }

  /// Adds the layer that predicts one more token.
  void add_prediction_layer(std::uint64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add_layer(layer);
    add(prefix + "embed_tokens.weight", DType::kBF16, {kVocab, kHidden});
    add(prefix + "enorm.weight", DType::kBF16, {kHidden});
    add(prefix + "hnorm.weight", DType::kBF16, {kHidden});
    add(prefix + "eh_proj.weight", DType::kBF16, {kHidden, 2 * kHidden});
    add(prefix + "shared_head.norm.weight", DType::kBF16, {kHidden});
    add(prefix + "shared_head.head.weight", DType::kBF16, {kVocab, kHidden});
  }

  std::vector<reshard::LogicalTensor> tensors_;
};

void make_experts(const fs::path& out_dir) {
  const reshard::TargetMap map = reshard::hf_target_map(ExpertsModel().tensors(), 4'300'000'000);
  write_layout(map, {{reshard::kSafetensorsIndexFile, reshard::hf_index_text(reshard::index_of(map))}}, out_dir);
  const reshard::Json config = {{"architectures", {"DeepseekV3ForCausalLM"}},
                                {"model_type", "deepseek_v3"},
                                {"vocab_size", 129280},
                                {"hidden_size", 7168},
                                {"intermediate_size", 18432},
                                {"moe_intermediate_size", 2048},
                                {"num_hidden_layers", 61},
                                {"num_nextn_predict_layers", 1},
                                {"num_attention_heads", 128},
                                {"num_key_value_heads", 128},
                                {"n_shared_experts", 1},
                                {"n_routed_experts", 256},
                                {"kv_lora_rank", 512},
                                {"q_lora_rank", 1536},
                                {"qk_rope_head_dim", 64},
                                {"v_head_dim", 128},
                                {"qk_nope_head_dim", 128},
                                {"first_k_dense_replace", 3},
                                {"moe_layer_freq", 1},
                                {"tie_word_embeddings", false},
                                {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}};
  write_text(out_dir / "config.json", config.dump(2) + "\n");
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Writes checkpoints of holes: headers without data."};
  app.require_subcommand(1);
  ShardOptions options;
  CLI::App& shards = *app.add_subcommand("shards", "what `reshard shard` makes of a model");
  shards.add_option("MODEL_DIR", options.model_dir)->required();
  shards.add_option("OUT_DIR", options.out_dir)->required();
  shards.add_option("--tp", options.tp);
  shards.add_option("--pp", options.pp);
  shards.add_option("--format", options.format)->check(CLI::IsMember({"safetensors", "pytorch", "xser"}));
  CLI::App& experts = *app.add_subcommand("experts", "a mixture of experts of DeepSeek-V3's names and sizes");
  experts.add_option("OUT_DIR", options.out_dir)->required();
  CLI11_PARSE(app, argc, argv);
  if (experts.parsed())
    make_experts(options.out_dir);
  else
    make_shards(options);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "make_holes: {}\n", error.what());
  return 1;
}
