#include "support/models.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/engine/move/run.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/map/whole_map.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/local_files.h"

namespace reshard::test {

namespace fs = std::filesystem;

nlohmann::json TinyModel::config() const {
  nlohmann::json values{
      {"model_type", model_type},    {"hidden_size", hidden},        {"intermediate_size", intermediate},
      {"num_hidden_layers", layers}, {"num_attention_heads", heads}, {"num_key_value_heads", kv_heads},
      {"head_dim", head_dim},        {"vocab_size", vocab},          {"tie_word_embeddings", tied}};
  if (attention_bias) values["attention_bias"] = true;
  if (mlp_bias) values["mlp_bias"] = true;
  return values;
}

std::vector<TinyParameter> parameters_of(const TinyModel& model) {
  std::vector<TinyParameter> list{{"model.embed_tokens.weight", {model.vocab, model.hidden}}};
  const auto linear = [&](const std::string& name, std::uint64_t out, std::uint64_t in, bool bias) {
    list.push_back({name + ".weight", {out, in}});
    if (bias) list.push_back({name + ".bias", {out}});
  };
  const std::uint64_t query = model.heads * model.head_dim;
  const std::uint64_t key = model.kv_heads * model.head_dim;
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    linear(prefix + "self_attn.q_proj", query, model.hidden, model.has_qkv_bias());
    linear(prefix + "self_attn.k_proj", key, model.hidden, model.has_qkv_bias());
    linear(prefix + "self_attn.v_proj", key, model.hidden, model.has_qkv_bias());
    linear(prefix + "self_attn.o_proj", model.hidden, query, model.attention_bias);
    if (model.inv_freq) list.push_back({prefix + "self_attn.rotary_emb.inv_freq", {model.head_dim / 2}});
    if (model.model_type == "qwen3") {
      list.push_back({prefix + "self_attn.q_norm.weight", {model.head_dim}});
      list.push_back({prefix + "self_attn.k_norm.weight", {model.head_dim}});
    }
    linear(prefix + "mlp.gate_proj", model.intermediate, model.hidden, model.mlp_bias);
    linear(prefix + "mlp.up_proj", model.intermediate, model.hidden, model.mlp_bias);
    linear(prefix + "mlp.down_proj", model.hidden, model.intermediate, model.mlp_bias);
    list.push_back({prefix + "input_layernorm.weight", {model.hidden}});
    list.push_back({prefix + "post_attention_layernorm.weight", {model.hidden}});
  }
  list.push_back({"model.norm.weight", {model.hidden}});
  if (!model.tied) list.push_back({"lm_head.weight", {model.vocab, model.hidden}});
  return list;
}

TensorMap random_tensors(const TinyModel& model, Random& random, DType dtype) {
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of(model))
    tensors[parameter.name] = random_tensor(random, dtype, parameter.shape);
  return tensors;
}

namespace {

/// The files of a model in `directory`: path → content.
std::map<fs::path, std::string> model_files(const fs::path& directory, const TinyModel& model, const TensorMap& tensors,
                                            std::size_t count) {
  std::map<fs::path, std::string> files{{directory / "config.json", model.config().dump(2)}};
  if (count == 1) {
    files[directory / "model.safetensors"] = safetensors_bytes(tensors);
    return files;
  }
  std::map<std::string, TensorMap> dealt;
  nlohmann::json index;
  std::size_t next = 0;
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file =
        "model-0000" + std::to_string(next++ % count + 1) + "-of-0000" + std::to_string(count) + ".safetensors";
    dealt[file][name] = tensor;
    index["weight_map"][name] = file;
    total += tensor.bytes.size();
  }
  index["metadata"]["total_size"] = total;
  files[directory / "model.safetensors.index.json"] = index.dump();
  for (const auto& [file, held] : dealt) files[directory / file] = safetensors_bytes(held);
  return files;
}

}  // namespace

void write_model(const fs::path& directory, const TinyModel& model, const TensorMap& tensors, std::size_t files) {
  for (const auto& [path, content] : model_files(directory, model, tensors, files)) write_file(path, content);
}

void write_model(MemoryFiles& files, const fs::path& directory, const TinyModel& model, const TensorMap& tensors,
                 std::size_t count) {
  for (const auto& [path, content] : model_files(directory, model, tensors, count)) files.write(path, content);
}

TensorMap read_model(const fs::path& directory) {
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (!fs::exists(index_path)) return read_tensors(directory / "model.safetensors");
  TensorMap tensors;
  const auto index = nlohmann::json::parse(read_file(index_path));
  std::map<std::string, TensorMap> files;
  for (const auto& [name, file] : index.at("weight_map").items()) {
    const auto file_name = file.get<std::string>();
    if (!files.count(file_name)) files[file_name] = read_tensors(directory / file_name);
    tensors[name] = files[file_name].at(name);
  }
  return tensors;
}

std::map<std::string, TensorMap> read_ranks(const fs::path& output) {
  std::map<std::string, TensorMap> ranks;
  for (const auto& entry : fs::directory_iterator(output / "tensor_parallel_shards"))
    if (entry.is_directory())
      ranks[entry.path().filename().string()] = read_tensors(entry.path() / "model.safetensors");
  return ranks;
}

void write_sparse_model(const fs::path& directory, const TinyModel& model) {
  nlohmann::json header;
  std::uint64_t end = 0;
  for (const TinyParameter& parameter : parameters_of(model)) {
    const std::uint64_t begin = end;
    end += num_bytes(DType::kBF16, parameter.shape).value();
    header[parameter.name] = {{"dtype", "BF16"}, {"shape", parameter.shape}, {"data_offsets", {begin, end}}};
  }
  const fs::path weights = directory / "model.safetensors";
  write_file(directory / "config.json", model.config().dump());
  write_file(weights, safetensors_bytes(header.dump(), {}));
  fs::resize_file(weights, fs::file_size(weights) + end);
}

RunOptions unsynced() {
  RunOptions options;
  options.sync = false;
  return options;
}

RunResult shard(const Request& request, const RunOptions& options) {
  return execute(*plan_shard(request), options);
}

RunResult consolidate(const Request& request, const RunOptions& options) {
  return execute(*plan_consolidate(request), options);
}

std::optional<Format> usual_format(const Layout& layout) {
  if (layout.traits().formats.empty()) return std::nullopt;
  return layout.traits().name == std::string_view("ranks") ? Format::kSafetensors : layout.traits().formats.front();
}

Request shard_request(const fs::path& model, const fs::path& output, std::uint32_t tp, std::uint32_t pp) {
  Request request;
  request.source.path = model;
  request.output_directory = output;
  request.target.layout = layout("ranks");
  request.target.format = usual_format(*request.target.layout);
  request.target.tp = tp;
  request.target.pp = pp;
  return request;
}

void run_in_blocks(const Job& job, const fs::path& root, std::uint64_t block_bytes, unsigned threads) {
  for (const TargetFile& file : job.target.files) {
    fs::create_directories((root / file.path).parent_path());
    const auto sink = local_storage().create(root / file.path, file.size_bytes);
    if (needs_crcs(file)) continue;
    for (const FilePart& part : target_parts(job.target, file))
      sink->write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
  }
  RunOptions options;
  options.threads = threads;
  options.tuning.least_part_bytes = 1;
  const std::vector<std::uint32_t> crcs = run_program(job.maps(), job.program, root, options, {}, block_bytes);
  for (const TargetFile& file : job.target.files) {
    if (!needs_crcs(file)) continue;
    const auto sink = local_storage().reopen(root / file.path);
    for (const FilePart& part : target_parts(job.target, file, crcs))
      sink->write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
  }
  for (const TextFile& file : job.text_files) write_file(root / file.path, file.text);
}

void check_blocks(const Job& job, const fs::path& root, std::uint64_t block_bytes, unsigned threads) {
  run_in_blocks(job, root, block_bytes, threads);
  for (const TargetFile& file : job.target.files)
    CHECK((read_file(root / file.path) == read_file(job.output_directory / file.path)));
}

}  // namespace reshard::test
