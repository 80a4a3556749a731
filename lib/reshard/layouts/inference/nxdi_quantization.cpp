#include "reshard/layouts/inference/nxdi_quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

constexpr const char* kUnquantized = "none";
constexpr const char* kQuantizationKey = "quantization_config";
constexpr const char* kType = "quantization_type";
constexpr const char* kDType = "quantization_dtype";
constexpr const char* kFloatModules = "modules_to_not_convert";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScaleEnding = ".scale";
constexpr std::uint64_t kKernelRows = 128;  // the kernel of quantised MLPs works on a multiple of them

/// A value of kQuantization.
struct QuantizationWords {
  std::string how;                         // "per_channel_symmetric:int8" or "none"
  std::vector<std::string> float_modules;  // parts of the names of linears that are not quantised
};

QuantizationWords parse_words(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::size_t end = colon == text.npos ? colon : text.find(':', colon + 1);
  QuantizationWords wanted{text.substr(0, end), {}};
  if (end != text.npos) wanted.float_modules = split(text.substr(end + 1), ',');
  return wanted;
}

std::string words_text(const std::string& how, const std::vector<std::string>& float_modules) {
  return float_modules.empty() ? how : how + ":" + join(float_modules, ",");
}

/// Returns the modules of the quantised linears.
std::set<std::string> quantized_modules(const Model& model) {
  std::set<std::string> modules;
  if (model.quantization_marker.empty()) return modules;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.name == parameter.module + "." + model.quantization_marker) modules.insert(parameter.module);
  return modules;
}

/// Returns `name` with the marker instead of "weight"; empty if it is no weight.
std::string scale_name(const std::string& name, const std::string& marker) {
  if (!name.ends_with(kWeight)) return {};
  return name.substr(0, name.size() - kWeight.size() + 1) + marker;
}

/// Returns the entry of the scales of an entry's weights; std::nullopt for entries that are not of weights, or whose
/// scales do not follow from them: experts, and weights that are split along another dim than their plan's.
std::optional<SchemeEntry> scale_entry(SchemeEntry entry, const std::string& marker) {
  const bool has_experts = std::any_of(entry.entry_dims.begin(), entry.entry_dims.end(),
                                       [](const auto& axes) { return axes.front() == kNumberAxes.back(); });
  if (has_experts || entry.ranks.dim.value_or(0) != 0) return std::nullopt;
  for (auto* names : {&entry.names, &entry.parameters})
    for (std::string& name : *names) {
      name = scale_name(name, marker);
      if (name.empty()) return std::nullopt;
    }
  entry.constants.clear();
  std::vector<SchemeEntry> copies;
  for (SchemeEntry& copy : entry.copies)
    if (auto one = scale_entry(std::move(copy), marker)) copies.push_back(std::move(*one));
  entry.copies = std::move(copies);
  return entry;
}

/// Returns the chunks of ranks with zeros at the end of each rank's, to a multiple of kKernelRows.
/// \throws Error kUnsupported if a rank has padding already.
std::shared_ptr<const Placement> padded_on_ranks(const Placement& own, const std::string& parameter) {
  const std::uint64_t size = own.unit_elems.value_or(1), unit = std::gcd(size, kKernelRows), count = kKernelRows / unit;
  Placement padded{own.units * (size / unit), unit, {}};
  for (const std::vector<std::uint32_t>& chunks : own.taken) {
    std::vector<std::uint32_t>& taken = padded.taken.emplace_back();
    for (const std::uint32_t chunk : chunks) {
      if (chunk >= own.units)
        throw Error(ErrorKind::kUnsupported,
                    "NxD Inference's kernel of quantised MLPs needs an intermediate_size that the ranks divide")
            .tensor(parameter)
            .hint("choose a `tp` that divides the intermediate_size");
      for (std::uint64_t i = 0; i < size / unit; ++i)
        taken.push_back(static_cast<std::uint32_t>(chunk * (size / unit) + i));
    }
    taken.resize((taken.size() + count - 1) / count * count, static_cast<std::uint32_t>(padded.units));
  }
  return std::make_shared<const Placement>(std::move(padded));
}

/// Returns the linears that are stored for the kernel of quantised MLPs, as their scales show.
std::set<std::string> linears_of_kernel(const std::vector<TensorEntry>& tensors) {
  std::set<std::string> linears;
  for (const TensorEntry& tensor : tensors)
    if (tensor.name.ends_with(kScaleEnding) && tensor.shape.size() == 2 && tensor.shape[0] == kKernelRows &&
        tensor.shape[1] != 1)
      linears.insert(tensor.name.substr(0, tensor.name.rfind('.')));
  return linears;
}

/// Whether there are weights for is_mxfp4_compute: four values are one element of U16, next to the scales.
bool has_mxfp4_words(const std::vector<TensorEntry>& tensors) {
  std::set<std::string> scales;
  for (const TensorEntry& tensor : tensors)
    if (tensor.dtype == DType::kU8 && tensor.name.ends_with(kScaleEnding)) scales.insert(tensor.name);
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
    return tensor.dtype == DType::kU16 &&
           scales.count(tensor.name.substr(0, tensor.name.rfind('.')) + std::string(kScaleEnding)) > 0;
  });
}

QuantizationEvidence evidence_in(const ShardedCheckpoint& shards) {
  QuantizationEvidence evidence;
  const std::vector<TensorEntry>& tensors = shards.files.front().front().tensors;
  const std::set<std::string> transposed = linears_of_kernel(tensors);
  for (const TensorEntry& tensor : tensors) {
    Dims shape = tensor.shape;
    if (transposed.count(tensor.name.substr(0, tensor.name.rfind('.'))) > 0 && shape.size() == 2)
      shape = {shape[1], tensor.name.ends_with(kScaleEnding) ? 1 : shape[0]};
    evidence.add(tensor.name, tensor.dtype, shape);
  }
  return evidence;
}

/// Sets the quantization_config with which the model of a checkpoint is created; null for none.
void set_quantization(Checkpoint& checkpoint, const Json& quantization) {
  ModelConfig& config = checkpoint.language_model.config;
  Json json = *config.json;
  json[kQuantizationKey] = quantization;
  config.json = std::make_shared<const Json>(std::move(json));
}

/// Creates the model again, with the parameters of a checkpoint with these names.
void create_model(Checkpoint& checkpoint, const std::unordered_set<std::string_view>& names) {
  Model model = instantiate(checkpoint.language_model, names);
  model.family_from = checkpoint.model->family_from;
  checkpoint.model = std::move(model);
}

/// Leaves out the tensors of a quantised head that is tied to the embedding.
void leave_out_tied(ShardedCheckpoint& shards, Checkpoint& checkpoint, const std::set<std::string>& names) {
  for (std::vector<Container>& of_stage : shards.files)
    for (Container& file : of_stage)
      std::erase_if(file.tensors, [&](const TensorEntry& tensor) { return names.count(tensor.name) > 0; });
  checkpoint.notes
      .left_out(fmt::format(
          "left out: {}. The head is tied to the embedding, which NxD Inference casts to the quantised dtype "
          "without applying the scale: these values are useless, and the embedding is complete",
          list_names(std::vector<std::string>(names.begin(), names.end()))))
      .of({names.begin(), names.end()});
}

}  // namespace

std::optional<std::string> declared_quantization(const Json& settings) {
  const Json* quantized = find_key(settings, "quantized");
  if (quantized == nullptr || !quantized->is_boolean()) return std::nullopt;
  if (*quantized == false) return kUnquantized;
  const auto text_at = [&](const char* key) {
    const Json* value = find_key(settings, key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  };
  std::vector<std::string> float_modules;
  if (const Json* modules = find_key(settings, kFloatModules); modules != nullptr && modules->is_array())
    for (const Json& module : *modules)
      if (module.is_string()) float_modules.push_back(module.get<std::string>());
  return words_text(text_at(kType) + ":" + text_at(kDType), float_modules);
}

std::string quantization_of(const Model& model, const QuantizationEvidence& evidence) {
  const auto config = evidence.config();
  if (config == nullptr) return kUnquantized;
  const std::set<std::string> quantized = quantized_modules(model);
  std::vector<std::string> float_modules;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.plain && quantized.count(parameter.module) == 0) float_modules.push_back(parameter.module);
  return words_text(config->at(kType).get<std::string>() + ":" + config->at(kDType).get<std::string>(), float_modules);
}

void validate_quantized_weights(const Model& model, const QuantizationEvidence& evidence) {
  for (const std::string& module : quantized_modules(model))
    if (!evidence.has_small_weight(module))
      throw Error(ErrorKind::kBadInput, "has a scale, but its values are not quantised")
          .tensor(module + std::string(kWeight))
          .hint("the checkpoint is damaged: quantise the model again");
}

std::string quantization_misfit(const Model& model, const std::string& own, const std::string& wanted) {
  const QuantizationWords found = parse_words(own), expected = parse_words(wanted);
  if (found.how == kUnquantized)
    return expected.how == kUnquantized
               ? std::string()
               : fmt::format("the weights are not quantised, expected {}", printable(expected.how));
  if (expected.how == kUnquantized)
    return fmt::format("the weights are quantised ({}), expected weights that are not", printable(found.how));
  if (found.how != expected.how)
    return fmt::format("the weights are quantised as {}, expected {}", printable(found.how), printable(expected.how));
  const auto is_float = [&](const std::string& module) {
    return std::any_of(expected.float_modules.begin(), expected.float_modules.end(),
                       [&](const std::string& part) { return module.find(part) != module.npos; });
  };
  for (const std::string& module : quantized_modules(model))
    if (is_float(module)) return fmt::format("{} is quantised, although {} names it", printable(module), kFloatModules);
  for (const std::string& module : found.float_modules)
    if (!is_float(module))
      return fmt::format("{} is not quantised, and {} does not name it", printable(module), kFloatModules);
  return {};
}

void validate_quantized_rules(const Model& model, const std::vector<PartitionRule>& rules) {
  const std::set<std::string> modules = quantized_modules(model);
  if (modules.empty()) return;
  std::set<std::string> scalars, scales, placed;
  for (const ModelParameter& parameter : model.parameters) {
    if (modules.count(parameter.module) == 0 || parameter.name.ends_with(kWeight) || parameter.is_bias) continue;
    scales.insert(parameter.name);
    if (parameter.shape_known == ShapeKnown::kOneElement) scalars.insert(parameter.name);
  }
  const auto fail = [](const std::string& name, const char* why) {
    throw Error(ErrorKind::kUnsupported, fmt::format("is quantised, and {}", why))
        .tensor(name)
        .hint("leave the module out of the quantisation (modules_to_not_convert)");
  };
  for (const PartitionRule& rule : rules)
    for (const PartitionRule::Part& part : rule.parts) {
      placed.insert(part.logical_name);
      if (rule.parts.size() > 1 && scalars.count(part.logical_name) > 0)
        fail(part.logical_name, "NxD Inference does not fuse linears with one scale per tensor");
      const std::string scale = scale_name(part.logical_name, model.quantization_marker);
      if (scalars.count(scale) == 0) continue;
      for (const PartitionRule::PlacedDim& along : part.placed)
        for (const std::vector<std::uint32_t>& taken : along.placement->taken)
          if (std::any_of(taken.begin(), taken.end(),
                          [&](std::uint32_t unit) { return unit >= along.placement->units; }))
            fail(part.logical_name, "NxD Inference does not pad linears with one scale per tensor");
    }
  for (const std::string& scale : scales)
    if (placed.count(scale) == 0) fail(scale, "NxD Inference has no place for this scale");
}

void add_scale_entries(Scheme& scheme, const std::string& marker) {
  std::vector<SchemeEntry> scales;
  for (const SchemeEntry& entry : scheme.entries)
    if (auto scale = scale_entry(entry, marker)) scales.push_back(std::move(*scale));
  std::move(scales.begin(), scales.end(), std::back_inserter(scheme.entries));
}

void set_quantized_kernels(std::vector<PartitionRule>& rules, const Model& model, const Kernels& kernels) {
  const std::set<std::string> modules = quantized_modules(model);
  std::set<std::string> scalars;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.shape_known == ShapeKnown::kOneElement) scalars.insert(parameter.name);
  for (PartitionRule& rule : rules) {
    if (rule.kernel.empty() || rule.parts.empty()) continue;
    const std::string name = rule.parts.front().logical_name;
    if (modules.count(name.substr(0, name.rfind('.'))) == 0) continue;
    if (rule.kernel != kMlpKernel || kernels.count(kQuantizedMlpKernel) == 0) {
      rule.kernel.clear();
      continue;
    }
    if (scalars.count(name) > 0)
      throw Error(ErrorKind::kUnsupported, "NxD Inference's kernel of quantised MLPs needs one scale per row")
          .tensor(name)
          .hint("quantise the model with per_channel_symmetric, or leave out the kernel");
    rule.kernel = kQuantizedMlpKernel;
    for (PartitionRule::PlacedDim& along : rule.parts.front().placed)
      along.placement = padded_on_ranks(*along.placement, name);
    if (!name.ends_with(kScaleEnding)) continue;
    rule.parts.resize(kKernelRows, PartitionRule::Part(rule.parts.front()));
    rule.stack_dim = 1;
  }
}

bool has_quantized_mlp_kernel(const std::vector<TensorEntry>& tensors) {
  return !linears_of_kernel(tensors).empty();
}

void recognise_rank_quantization(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  if (checkpoint.model->by_config_plan) return;
  std::shared_ptr<const Json> found;
  try {
    found = evidence_in(shards).config();
  } catch (Error& error) {
    throw error.in(shards.files.front().front().path);
  }
  if (has_mxfp4_words(shards.files.front().front().tensors)) {
    constexpr const char* kMethod = "mxfp4";
    if (checkpoint.model->quant_method == kMethod) return;
    found = std::make_shared<const Json>(Json{{"quant_method", kMethod}});
  }
  if (found == nullptr && checkpoint.model->quant_method.empty()) return;
  set_quantization(checkpoint, found == nullptr ? Json() : *found);
  create_model(checkpoint, {});
  checkpoint.config.changes.push_back(quantization_change(found));
}

std::set<std::string> add_scales_in_files(ShardedCheckpoint& shards, Checkpoint& checkpoint, const WrittenNames& names,
                                          const OptionValues& declared) {
  const std::string marker = checkpoint.model->quantization_marker;
  std::unordered_set<std::string_view> held;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) held.insert(tensor.name);
  std::set<std::string> scales, tied, left_out;
  for (const ModelParameter& parameter : checkpoint.model->parameters)
    if (!parameter.tied_to.empty()) tied.insert(parameter.name);
  for (const WrittenNames::Entry& entry : names.entries()) {
    const std::string own = scale_name(entry.name, marker);
    if (marker.empty() || own.empty() || held.count(own) == 0) continue;
    for (const std::string& parameter : entry.tensors) {
      if (tied.count(parameter) == 0)
        scales.insert(scale_name(parameter, marker));
      else
        left_out.insert({entry.name, own});
    }
  }
  if (!marker.empty()) create_model(checkpoint, {scales.begin(), scales.end()});
  if (!left_out.empty()) leave_out_tied(shards, checkpoint, left_out);
  if (!declared.has(kQuantization.name)) return left_out;
  const Model* model = &*checkpoint.model;
  Model rest;  // without the head that is left out
  if (!left_out.empty()) {
    rest = *model;
    std::erase_if(rest.parameters, [](const ModelParameter& parameter) { return !parameter.tied_to.empty(); });
    model = &rest;
  }
  const std::string misfit =
      quantization_misfit(*model, quantization_of(*model, evidence_in(shards)), declared.text(kQuantization));
  if (misfit.empty()) return left_out;
  throw Error(ErrorKind::kBadInput, fmt::format("does not belong to neuron_config.json: {}", misfit))
      .in(checkpoint.path)
      .hint("use the neuron_config.json of the model that the files belong to");
}

}  // namespace reshard
