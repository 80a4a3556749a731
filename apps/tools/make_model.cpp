// Writes a synthetic Hugging Face checkpoint of a known family, with the real names, shapes, files and index, to test
// real sizes without real weights. Equal options give equal bytes.
//
//   make_model OUT_DIR --family llama --hidden 4096 --layers 32 --heads 32 --kv-heads 8 --vocab 128256 …
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/model/language_model.h"

namespace {

namespace fs = std::filesystem;
using reshard::DType;
using reshard::Json;

constexpr std::size_t kBufferWords = std::size_t{1} << 19;  // 4 MiB

struct Options {
  fs::path out_dir;
  std::string family = "llama";
  std::uint64_t hidden = 512;
  std::uint64_t intermediate = 1376;
  std::uint64_t layers = 8;
  std::uint64_t heads = 8;
  std::optional<std::uint64_t> kv_heads;
  std::optional<std::uint64_t> head_dim;
  std::uint64_t vocab = 4096;
  std::string dtype = "BF16";
  bool tied = false;
  bool bias = false;
  std::vector<std::string> keys;
  std::string max_file_size = "5GB";
  std::uint64_t seed = 0;
  bool sparse = false;
  bool adam = false;
};

/// A random word becomes `(bits & keep) | set`: one pattern per dtype that restricts values. Floats are finite, of both
/// signs and with magnitudes from 2^-7 to 2, similar to weights.
struct Pattern {
  std::uint64_t keep;
  std::uint64_t set;
};

constexpr Pattern repeat(std::uint64_t keep, std::uint64_t set, unsigned bits) {
  for (; bits < 64; bits *= 2) {
    keep |= keep << bits;
    set |= set << bits;
  }
  return {keep, set};
}

Pattern pattern_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return repeat(0x01, 0, 8);
    case DType::kF8E8M0: return repeat(0x03, 0x78, 8);
    case DType::kF8E4M3:
    case DType::kF8E4M3FNUZ: return repeat(0x9f, 0x20, 8);
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ: return repeat(0x8f, 0x20, 8);
    case DType::kF16: return repeat(0x8fff, 0x2000, 16);
    case DType::kBF16: return repeat(0x81ff, 0x3c00, 16);
    case DType::kF32:
    case DType::kC64: return repeat(0x81ff'ffff, 0x3c00'0000, 32);
    case DType::kF64: return {0x803f'ffff'ffff'ffff, 0x3f80'0000'0000'0000};
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64: break;
  }
  return {~std::uint64_t{0}, 0};
}

/// The mixing function of splitmix64: every bit of `x` affects every bit of the result.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t tensor_seed(std::uint64_t seed, const std::string& name) {
  std::uint64_t hash = mix(seed + 1);
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

Json make_config(const Options& options) {
  std::string architecture = options.family + "ForCausalLM";
  architecture[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(architecture[0])));
  Json config = {{"architectures", {architecture}},
                 {"model_type", options.family},
                 {"hidden_size", options.hidden},
                 {"intermediate_size", options.intermediate},
                 {"num_hidden_layers", options.layers},
                 {"num_attention_heads", options.heads},
                 {"num_key_value_heads", options.kv_heads.value_or(options.heads)},
                 {"head_dim", options.head_dim.value_or(options.hidden / options.heads)},
                 {"vocab_size", options.vocab},
                 {"tie_word_embeddings", options.tied},
                 {"max_position_embeddings", 4096},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  const auto dtype = reshard::dtype_from_name(options.dtype);
  if (const std::string torch_name = dtype ? reshard::describe(*dtype).torch_name : ""; !torch_name.empty())
    config["torch_dtype"] = torch_name;
  return config;
}

/// Enables every bias that the family supports.
void set_biases(const reshard::Family& family, Json& config) {
  bool any = false;
  for (const auto& module : family.modules) {
    any = any || module.bias;
    for (const std::string& key : module.bias.keys()) config[key] = true;
  }
  if (!any) throw std::runtime_error("--bias: " + family.model_type + " has no biases");
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

void write_companions(const Options& options, const Json& config) {
  if (options.adam) return;  // the output is not a model
  write_text(options.out_dir / "config.json", config.dump(2) + "\n");
  const Json generation = {{"bos_token_id", 1}, {"eos_token_id", 2}, {"do_sample", false}};
  write_text(options.out_dir / "generation_config.json", generation.dump(2) + "\n");
  const Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"a", 3}, {"b", 4}};
  const Json model = {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},      {"truncation", nullptr},         {"padding", nullptr},
                          {"normalizer", nullptr}, {"pre_tokenizer", nullptr},      {"post_processor", nullptr},
                          {"decoder", nullptr},    {"added_tokens", Json::array()}, {"model", model}};
  write_text(options.out_dir / "tokenizer.json", tokenizer.dump(2) + "\n");
}

/// A new file, written sequentially.
class OutputFile {
 public:
  explicit OutputFile(const fs::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail();
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() { ::close(descriptor_); }

  void write(const void* bytes, std::uint64_t size_bytes) {
    const char* next = static_cast<const char*>(bytes);
    while (size_bytes > 0) {
      const ssize_t written = ::write(descriptor_, next, size_bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      next += written;
      size_bytes -= static_cast<std::uint64_t>(written);
    }
  }

  /// Extends the file to `size_bytes`. The new bytes read as zeros and take no disk space.
  void extend(std::uint64_t size_bytes) {
    if (::ftruncate(descriptor_, static_cast<off_t>(size_bytes)) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const { throw std::system_error(errno, std::generic_category(), path_.string()); }

  fs::path path_;
  int descriptor_;
};

void write_tensor(const reshard::StoredTensor& tensor, std::uint64_t seed, std::vector<std::uint64_t>& buffer,
                  OutputFile& out) {
  const Pattern pattern = pattern_of(tensor.dtype);
  std::uint64_t state = tensor_seed(seed, tensor.name);
  for (std::uint64_t left = tensor.size_bytes(); left > 0;) {
    const std::uint64_t bytes = std::min<std::uint64_t>(left, buffer.size() * sizeof(std::uint64_t));
    const std::size_t words = (bytes + 7) / 8;
    for (std::size_t i = 0; i < words; ++i) {
      state += 0x9e3779b97f4a7c15;
      buffer[i] = (mix(state) & pattern.keep) | pattern.set;
    }
    out.write(buffer.data(), bytes);
    left -= bytes;
  }
}

/// `map.stored` lists each file's tensors consecutively, by offset.
void write_weights(const Options& options, const reshard::TargetMap& map) {
  std::vector<std::uint64_t> buffer(kBufferWords);
  auto tensor = map.stored.begin();
  for (std::uint32_t f = 0; f < map.files.size(); ++f) {
    const reshard::TargetFile& file = map.files[f];
    OutputFile out(options.out_dir / file.path);
    const std::string header = target_parts(map, file).front().bytes;
    out.write(header.data(), header.size());
    if (options.sparse) {
      out.extend(file.size_bytes);
      continue;
    }
    for (; tensor != map.stored.end() && tensor->file == f; ++tensor) write_tensor(*tensor, options.seed, buffer, out);
  }
}

reshard::ModelConfig model_config_of(const Options& options, const Json& config) {
  return {options.out_dir / "config.json", std::make_shared<const reshard::Json>(config), options.family};
}

reshard::TargetMap make_layout(const Options& options, const Json& config) {
  const auto dtype = reshard::dtype_from_name(options.dtype);
  if (!dtype) throw std::runtime_error("--dtype: " + options.dtype + " is not a safetensors dtype");
  const auto max_file_bytes = reshard::parse_size(options.max_file_size);
  if (!max_file_bytes) throw std::runtime_error("--max-file-size: " + options.max_file_size + " is not a size");
  const reshard::ModelConfig model_config = model_config_of(options, config);
  const reshard::Model model = reshard::instantiate(model_config);
  std::vector<reshard::LogicalTensor> logical;
  for (const reshard::ModelParameter& parameter : model.parameters) {
    if (!parameter.tied_to.empty() || parameter.optional) continue;
    logical.push_back({parameter.name, *dtype, parameter.shape});
    if (!options.adam) continue;
    for (const char* moment : {"exp_avg", "exp_avg_sq"})
      logical.push_back({fmt::format("optimizer.state.{}.{}", parameter.name, moment), DType::kF32, parameter.shape});
  }
  return reshard::hf_target_map(logical, *max_file_bytes);
}

void make_model(const Options& options) {
  if (fs::exists(options.out_dir) && !fs::is_empty(options.out_dir))
    throw std::runtime_error(options.out_dir.string() + " is not empty");
  Json config = make_config(options);
  for (const std::string& key : options.keys) {
    const std::size_t equals = key.find('=');
    if (equals == std::string::npos) throw std::runtime_error("--set: " + key + " has no =");
    config[key.substr(0, equals)] = Json::parse(key.substr(equals + 1));
  }
  if (options.bias) set_biases(*reshard::builtin_family(options.family), config);
  const reshard::TargetMap map = make_layout(options, config);

  const auto start = std::chrono::steady_clock::now();
  fs::create_directories(options.out_dir);
  write_companions(options, config);
  write_weights(options, map);
  if (map.files.size() > 1)
    write_text(options.out_dir / reshard::kSafetensorsIndexFile, reshard::hf_index_text(reshard::index_of(map)));

  std::uint64_t bytes = 0;
  for (const reshard::TargetFile& file : map.files) bytes += file.size_bytes;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} tensors in {} {}, {}{}, {:.1f} s\n", options.out_dir.string(), map.stored.size(), map.files.size(),
             map.files.size() == 1 ? "file" : "files", reshard::format_bytes(bytes), options.sparse ? " of holes" : "",
             seconds);
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("OUT_DIR", options.out_dir, "the new checkpoint's directory")->required();
  app.add_option("--family", options.family, "model_type")->check([](const std::string& name) {
    return reshard::builtin_family(name) ? std::string() : name + " is not a built-in family";
  });
  app.add_option("--hidden", options.hidden, "hidden_size")->check(CLI::PositiveNumber);
  app.add_option("--intermediate", options.intermediate, "intermediate_size")->check(CLI::PositiveNumber);
  app.add_option("--layers", options.layers, "num_hidden_layers")->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads, "num_attention_heads")->check(CLI::PositiveNumber);
  app.add_option("--kv-heads", options.kv_heads, "num_key_value_heads [as --heads]")->check(CLI::PositiveNumber);
  app.add_option("--head-dim", options.head_dim, "head_dim [hidden / heads]")->check(CLI::PositiveNumber);
  app.add_option("--vocab", options.vocab, "vocab_size")->check(CLI::PositiveNumber);
  app.add_option("--set", options.keys, "further keys of config.json: num_experts=8, q_lora_rank=null")
      ->type_name("KEY=JSON");
  app.add_option("--dtype", options.dtype, "any dtype of safetensors");
  app.add_flag("--tied", options.tied, "the output matrix is the embedding's");
  app.add_flag("--bias", options.bias, "with every bias that the family can have");
  app.add_option("--max-file-size", options.max_file_size, "maximum tensor bytes per file, such as 5GB or 64MiB");
  app.add_option("--seed", options.seed, "other numbers for another seed");
  app.add_flag("--adam", options.adam,
               "with AdamW's states under the names that trainers give them, and without a config.json: an "
               "input of make_training");
  app.add_flag("--sparse", options.sparse, "headers only: the tensors are holes, read as zeros and take no disk");
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Writes a made-up Hugging Face checkpoint."};
  app.option_defaults()->always_capture_default();
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  make_model(options);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "make_model: {}\n", error.what());
  return 1;
}
