#include "reshard/layouts/inference/inference_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/neuron_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kQkv = "qkv";
constexpr std::string_view kOutProj = "out-proj";
constexpr std::string_view kAll[] = {kQkv, kOutProj, kMlpKernel, kQuantizedMlpKernel};
constexpr const char* kNone = "none";

/// A flag of neuron_config.json that enables a kernel, under its current or an older name.
struct KernelFlag {
  std::string_view kernel;
  std::string_view flag;
};
constexpr KernelFlag kFlags[] = {
    {kQkv, "qkv_kernel_enabled"},
    {kQkv, "qkv_nki_kernel_enabled"},
    {kOutProj, "out_proj_kernel_enabled"},
    {kOutProj, "attn_block_tkg_nki_kernel_enabled"},
    {kOutProj, "attn_tkg_nki_kernel_enabled"},
    {kOutProj, "attn_tkg_builtin_kernel_enabled"},
    {kMlpKernel, "mlp_kernel_enabled"},
    {kMlpKernel, "mlp_tkg_nki_kernel_enabled"},
    {kQuantizedMlpKernel, "quantized_mlp_kernel_enabled"},
};

/// Returns the flags of a kernel, for messages.
std::string flags_of(std::string_view kernel) {
  std::vector<std::string> flags;
  for (const KernelFlag& row : kFlags)
    if (row.kernel == kernel) flags.emplace_back(row.flag);
  return list_names(flags);
}

Dims swapped(Dims dims) {
  std::swap(dims[0], dims[1]);
  return dims;
}

/// Whether one kernel's matrices are transposed, according to their shapes.
struct ByShape {
  std::optional<bool> transposed;        // std::nullopt if the shapes are ambiguous
  const TensorEntry* decides = nullptr;  // the tensor that determines `transposed`
  const TensorEntry* square = nullptr;   // a square tensor, which is ambiguous; null if none was found
};

ByShape transposed_by_shape(const std::vector<PartitionRule>& rules, std::string_view kernel, const HeldTensors& held,
                            const RuleShapes& shapes) {
  ByShape found;
  for (const PartitionRule& rule : rules) {
    if (rule.kernel != kernel) continue;
    const TensorEntry* tensor = held.find(rule.stored_name);
    const auto plain = shapes.of(rule);
    if (tensor == nullptr || !plain || plain->size() != 2) continue;
    const bool is_plain = tensor->shape == *plain, is_transposed = tensor->shape == swapped(*plain);
    if (is_plain == is_transposed) {  // square, or the shape of another model
      if (is_plain) found.square = tensor;
      continue;
    }
    found.transposed = is_transposed;
    found.decides = tensor;
    return found;
  }
  return found;
}

/// Returns a hint for a word that is not a kernel.
std::string hint_for_kernel(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<std::string> kernels(std::begin(kAll), std::end(kAll));
  const bool is_known = std::find(kernels.begin(), kernels.end(), word) != kernels.end();
  const std::string guess = is_known ? word : nearest(word, kernels);
  if (!guess.empty()) return fmt::format("did you mean {}?", guess);
  return fmt::format("write {}, or a comma-separated list of {}", kNone, join(kernels, ", "));
}

/// Returns the kernels in the files' record; std::nullopt if the files have no record.
std::optional<Kernels> recorded_kernels(const ShardedCheckpoint& shards, const std::vector<PartitionRule>& rules) {
  if (!shards.record) return std::nullopt;
  Kernels kernels;
  for (const PartitionRule& rule : rules)
    if (!rule.kernel.empty() && shards.record->transposed.count(with_stars(rule.stored_name)))
      kernels.insert(rule.kernel);
  return kernels;
}

}  // namespace

std::optional<Kernels> kernels_of(const OptionValues& values, const std::string& prefix) {
  if (!values.has(kKernels.name)) return std::nullopt;
  const std::string text = values.text(kKernels);
  Kernels kernels;
  if (text == kNone) return kernels;
  for (const std::string& word : split(text, ',')) {
    const auto* const known = std::find(std::begin(kAll), std::end(kAll), word);
    if (known == std::end(kAll))
      throw Error(ErrorKind::kUsage,
                  fmt::format("`{}{}`: \"{}\" is not an NxD Inference kernel", prefix, kKernels.name, printable(word)))
          .hint(hint_for_kernel(word));
    kernels.insert(word);
  }
  return kernels;
}

std::string kernels_text(const Kernels& kernels) {
  return kernels.empty() ? kNone : fmt::format("{}", fmt::join(kernels, ","));
}

Kernels enabled_kernels(const Json& settings, const fs::path& path) {
  Kernels kernels;
  for (const KernelFlag& row : kFlags)
    if (neuron_flag(settings, row.flag, path)) kernels.emplace(row.kernel);
  if (!neuron_flag(settings, "fused_qkv", path)) kernels.erase(std::string(kQkv));
  return kernels;
}

Kernels idle_kernels(const std::vector<PartitionRule>& rules) {
  Kernels kernels(std::begin(kAll), std::end(kAll));
  for (const PartitionRule& rule : rules) {
    kernels.erase(rule.kernel);
    if (rule.kernel == kQuantizedMlpKernel) kernels.erase(std::string(kMlpKernel));  // which it is a form of
  }
  return kernels;
}

void transpose_rules(std::vector<PartitionRule>& rules, const Kernels& kernels) {
  for (PartitionRule& rule : rules) {
    if (!rule.kernel.empty() && std::find(std::begin(kAll), std::end(kAll), rule.kernel) == std::end(kAll))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("\"kernel\" is \"{}\", which NxD Inference does not have", printable(rule.kernel)))
          .tensor(rule.stored_name)
          .hint("kernels are " + kernels_text({std::begin(kAll), std::end(kAll)}));
    if (kernels.count(rule.kernel)) rule.file_dims = {1, 0};  // for matrices
  }
}

Kernels kernels_in_files(const ShardedCheckpoint& shards, const std::vector<PartitionRule>& rules, const Model& model,
                         const std::optional<Kernels>& given) {
  const Container& file = shards.files.front().front();
  const HeldTensors held(file);
  const RuleShapes shapes(model);
  const std::optional<Kernels> recorded = recorded_kernels(shards, rules), declared = given ? given : recorded;
  Kernels kernels;
  for (const std::string_view kernel : kAll) {
    const ByShape by_shape = transposed_by_shape(rules, kernel, held, shapes);
    const bool is_declared = declared && declared->count(kernel);
    if (by_shape.transposed && declared && is_declared != *by_shape.transposed)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format(
              "has the shape {}, so it is {}transposed for NxD Inference's kernels, but according to {} it is{}",
              to_string(by_shape.decides->shape), *by_shape.transposed ? "" : "not ",
              given ? "neuron_config.json or `from-kernels`" : "the metadata of the file", is_declared ? "" : " not"))
          .in(file.path)
          .tensor(by_shape.decides->name)
          .hint(
              "leave out `from-kernels`; or, if neuron_config.json belongs to another compiled model, remove it and "
              "set `config`");
    const bool has_matrices = by_shape.decides != nullptr || by_shape.square != nullptr;
    if (has_matrices && recorded && is_declared != (recorded->count(kernel) > 0))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its metadata records `{}` {}, but neuron_config.json or `from-kernels` has {}",
                              kKernels.name, kernels_text(*recorded), kernels_text(*declared)))
          .in(file.path)
          .hint(
              fmt::format("set `from-kernels` {}, or use the neuron_config.json of the model that the files belong to",
                          kernels_text(*recorded)));
    if (!by_shape.transposed && !declared && by_shape.square != nullptr)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is square, so it is unknown whether it is transposed for NxD Inference's kernels ({})",
                              flags_of(kernel)))
          .in(file.path)
          .tensor(by_shape.square->name)
          .hint(
              "copy neuron_config.json of the compiled model next to the folder with the weights, or set "
              "`from-kernels` to its kernels: none, or a list of qkv, out-proj, mlp, quantized-mlp");
    if (by_shape.transposed.value_or(is_declared)) kernels.emplace(kernel);
  }
  return kernels;
}

}  // namespace reshard
