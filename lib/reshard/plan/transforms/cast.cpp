#include "reshard/plan/transforms/cast.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/plan/transforms/config_dtype.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/quantization.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

DType dtype_after(const LogicalTensor& tensor, const Request& request) {
  const Integers integers = request.cast_all ? Integers::kAllow : Integers::kRefuse;
  if (can_cast(tensor.dtype, *request.dtype, integers)) return *request.dtype;
  if (!request.cast_all && can_cast(tensor.dtype, *request.dtype, Integers::kAllow)) return tensor.dtype;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("is {}, which cannot be cast to {}", name(tensor.dtype), name(*request.dtype)))
      .tensor(tensor.name)
      .hint("leave it out with `drop`, or leave out `dtype`");
}

/// Whether the tensor belongs to a quantised linear of a model whose `dtype` is that of the others.
bool keeps_dtype(const Checkpoint& source, const std::string& name) {
  const auto holds = [&](const std::string& other) { return source.map.find_logical(other).has_value(); };
  if (keeps_stored_dtype(name, holds)) return true;
  if (!source.model || !source.model->quantized || !casts_only_others(source.model->quant_method)) return false;
  const std::string scale = name.substr(0, name.rfind('.') + 1) + source.model->quantization_marker;
  return source.map.find_logical(scale).has_value() && (name == scale || name.ends_with(".weight"));
}

/// Whether no file contains the tensor, as with the values of a quantised weight.
bool is_computed(const SourceMap& source, const std::string& name) {
  const auto number = source.find_logical(name);
  return number && source.logical[*number].computed;
}

/// Number of floating-point tensors of a model by whether they are stored in float32. Computed tensors have no dtype of
/// their own in the files.
struct Widths {
  std::size_t float32 = 0, others = 0;

  /// Whether the model has float32 for some of its tensors only.
  bool is_mixed() const { return float32 < others; }
};

Widths widths_of(const Draft& draft) {
  Widths widths;
  for (const LogicalTensor& tensor : draft.wanted) {
    if (describe(tensor.dtype).kind != DTypeClass::kFloat || is_computed(draft.source.map, tensor.name)) continue;
    ++(tensor.dtype == DType::kF32 ? widths.float32 : widths.others);
  }
  return widths;
}

/// Whether a tensor stays as it is stored when others are cast to `dtype`, because the model computes with it in float32
/// (Family::float32). In a model of an unknown family, if it has the name of such a parameter, and is stored in float32
/// next to smaller tensors.
bool stays_float32(const Draft& draft, const LogicalTensor& tensor, DType dtype, const Widths& widths) {
  if (bits(dtype) >= bits(DType::kF32) || !draft.source.adapters.empty()) return false;
  const auto number = draft.source.map.find_logical(tensor.name);
  const std::string& name = number && *number < draft.old_names.size() ? draft.old_names[*number] : tensor.name;
  if (tensor.model_dtype == DType::kF32 && tensor.dtype == DType::kF32) return true;
  if (const auto& family = draft.source.language_model.family)
    return has_part(name, family->float32) || (dtype == DType::kF16 && has_part(name, family->float32_in_float16));
  const std::string parameter = name.substr(name.rfind('.') + 1);
  return tensor.dtype == DType::kF32 && widths.is_mixed() && has_part(parameter, float32_parts());
}

/// Lists names, of all layers as one.
std::string list_of(const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names)
    if (std::string pattern = with_stars(name); std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
      patterns.push_back(std::move(pattern));
  return list_names(patterns);
}

bool is_scale(const std::string& name) {
  return name.ends_with("_scale") || name.ends_with("_scale_inv") || name.ends_with(".scales");
}

/// Returns the name of the scales next to a quantised weight, as fp8, compressed-tensors, GPTQ and AWQ name them; empty
/// if it has no scales.
std::string scales_of(const SourceMap& source, const std::string& weight) {
  const std::string module = weight.substr(0, weight.rfind('.') + 1);
  for (const std::string& name : {weight + "_scale", weight + "_scale_inv", module + "scale", module + "scales"})
    if (name != weight && source.find_logical(name)) return name;
  return {};
}

/// Rejects casts of a quantised weight, which has no meaning without its scales.
void validate_not_quantized(const SourceMap& source, const std::string& weight, DType from, DType to,
                            const OrderedJson& config) {
  const DTypeRow& row = describe(from);
  const bool small_float = row.kind == DTypeClass::kFloat && row.bits <= 8 && from != DType::kF8E8M0;
  const bool integer = row.kind == DTypeClass::kSigned || row.kind == DTypeClass::kUnsigned;
  if (!small_float && (!integer || from == to)) return;
  const std::string scales = scales_of(source, weight);
  if (scales.empty() && !is_quantized_config(config)) return;
  throw Error(
      ErrorKind::kUnsupported,
      fmt::format("is quantised ({}, {}), and `dtype` does not apply scales: its numbers alone are another model",
                  row.name, scales.empty() ? "says config.json" : "with " + printable(scales)))
      .tensor(weight)
      .hint("leave out `dtype`, or dequantise the model first with the tool that quantised it");
}

bool is_float8(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat && bits(dtype) == 8;
}

/// Rejects plain casts of a model to float8: loaders expect scales, and wider norms and embeddings. Notes casts of
/// other tensors.
/// \param cast  names of the tensors that become float8.
void validate_float8(Draft& draft, const std::vector<std::string>& cast, const Request& request,
                     const OrderedJson& config) {
  if (cast.empty()) return;
  const bool is_adapter = std::any_of(cast.begin(), cast.end(),
                                      [](const std::string& name) { return name.find(".lora_") != std::string::npos; });
  const char* const dtype = describe(*request.dtype).torch_name;
  if ((!config.is_null() || is_adapter) && request.names.keep.empty())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`dtype` {} would cast all of the {} and write no scales: no program could load the result",
                            dtype, is_adapter ? "adapter" : "model, norms and embeddings too,"))
        .tensor(cast.front())
        .hint("quantise the model with a tool that writes scales; convert with `keep` casts selected tensors");
  draft.source.notes
      .changed(fmt::format("{} tensor{} cast to {} as plain numbers, without scales; no program loads them as a "
                           "quantised model",
                           cast.size(), cast.size() == 1 ? " is" : "s are", dtype))
      .of(cast);
}

/// Notes the tensors that a requested dtype leaves as they are stored, and those that it casts although most others were
/// smaller.
void note_float32(Draft& draft, const std::vector<std::string>& kept, const std::vector<std::string>& cast) {
  const auto are = [](const std::vector<std::string>& tensors, const char* one, const char* several) {
    return fmt::format("{} tensor{}", tensors.size(), tensors.size() == 1 ? one : several);
  };
  if (!kept.empty())
    draft.source.notes
        .hint(fmt::format("{} as stored, because the model computes with {} in float32: {}; `cast-all` casts {}",
                          are(kept, " stays", "s stay"), kept.size() == 1 ? "it" : "them", list_of(kept),
                          kept.size() == 1 ? "it" : "them"))
        .of(kept);
  if (!cast.empty())
    draft.source.notes
        .changed(fmt::format("{} float32 next to smaller tensors, and `dtype` casts {}: {}",
                             are(cast, " was", "s were"), cast.size() == 1 ? "it" : "them", list_of(cast)))
        .of(cast);
}

/// Casts to the requested dtype.
void cast_to_request(Draft& draft, const Request& request, const OrderedJson& config) {
  const DType wanted = *request.dtype;
  const bool casts_float32 = request.cast_all || request.target.layout->traits().casts_to_config_dtype;
  const Widths widths = widths_of(draft);
  bool scaled = false, kept = false, needs_cast_all = false;
  std::vector<std::string> to_float8, stay, shrink;
  for (LogicalTensor& tensor : draft.wanted) {
    if (keeps_dtype(draft.source, tensor.name)) {
      kept = true;
      continue;
    }
    const bool stays = tensor.dtype != wanted && stays_float32(draft, tensor, wanted, widths);
    if (stays && !casts_float32) {
      stay.push_back(tensor.name);
      continue;
    }
    const DType dtype = dtype_after(tensor, request);
    validate_not_quantized(draft.source.map, tensor.name, tensor.dtype, dtype, config);
    const bool is_number = describe(tensor.dtype).kind != DTypeClass::kFloat;
    needs_cast_all = needs_cast_all || stays || (is_number && dtype != tensor.dtype);
    const bool is_scaled = dtype != tensor.dtype && is_scale(tensor.name);
    scaled = scaled || is_scaled;
    if (dtype != tensor.dtype && is_float8(dtype)) to_float8.push_back(tensor.name);
    const bool shrinks = tensor.dtype == DType::kF32 && bits(dtype) < bits(DType::kF32) && widths.is_mixed();
    if (shrinks && !is_scaled && !is_computed(draft.source.map, tensor.name)) shrink.push_back(tensor.name);
    tensor.dtype = dtype;
  }
  validate_float8(draft, to_float8, request, config);
  note_float32(draft, stay, shrink);
  if (request.cast_all && !needs_cast_all)
    draft.source.notes.no_effect(
        "`cast-all` has no effect: no tensor of integers or booleans is cast, and none that the model needs in "
        "float32");
  if (kept) draft.source.notes.changed("the model is quantised: `dtype` casts what is not quantised, and no scales");
  if (scaled)
    draft.source.notes.changed(
        "the model is quantised: `dtype` casts its scales and what is not quantised; quantised weights stay as they "
        "are");
}

/// Returns the dtype in config.json; std::nullopt if it has none, or "auto". If both keys exist, `dtype` takes
/// precedence, as in Transformers.
/// \throws Error kBadInput, naming the key, if the value is not a floating-point dtype.
std::optional<DType> config_dtype(const ModelConfig& config) {
  const JsonObject object(*config.json, config.path);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!object.has(key) || object.at(key).is_null() || object.at(key) == "auto") continue;
    const Json& value = object.at(key);
    for (const DTypeRow& row : kDTypes)
      if (row.kind == DTypeClass::kFloat && *row.torch_name != '\0' && value == row.torch_name) return row.dtype;
    object.fail(key, "the name of a floating-point dtype, such as \"bfloat16\"");
  }
  return std::nullopt;
}

/// Casts tensors to the dtype that the model has them in (LogicalTensor::model_dtype), and notes it.
void cast_to_model(Draft& draft) {
  std::map<std::pair<DType, bool>, std::size_t> counts;  // by dtype, and whether float64 alone is why
  for (LogicalTensor& tensor : draft.wanted) {
    const auto wanted = tensor.model_dtype;
    if (!wanted || wanted == tensor.dtype) continue;
    const bool is_wide = tensor.dtype == DType::kF64 && wanted == DType::kF32;
    tensor.dtype = *wanted;
    ++counts[{tensor.dtype, is_wide}];
  }
  for (const auto& [how, count] : counts)
    draft.source.notes.changed(fmt::format(
        "{} tensor{} {} cast {}", count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
        how.second ? std::string("from F64 to F32") : fmt::format("to {}, the model's dtype", name(how.first))));
}

bool is_plain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Casts floating-point tensors of 16 and 32 bits to the dtype of the model that they are written next to, or else in
/// config.json, if the target's layout requires it, and notes it.
void cast_to_config(Files& files, Draft& draft, const Layout& target, std::optional<DType> base_dtype) {
  if (!target.traits().casts_to_config_dtype || (draft.source.config.path.empty() && !base_dtype)) return;
  const std::optional<DType> wanted = base_dtype ? base_dtype : config_dtype(read_config(files, draft.source));
  if (!wanted) return;
  std::size_t count = 0;
  for (LogicalTensor& tensor : draft.wanted) {
    if (!is_plain(*wanted) || !is_plain(tensor.dtype) || tensor.dtype == *wanted) continue;
    if (keeps_dtype(draft.source, tensor.name)) continue;
    tensor.dtype = *wanted;
    ++count;
  }
  if (count != 0)
    draft.source.notes.changed(fmt::format("{} {} cast to {}{}",
                                           count > 1 && count == draft.wanted.size()
                                               ? fmt::format("all {} tensors", count)
                                               : fmt::format("{} of the tensors", count),
                                           count == 1 ? "is" : "are", name(*wanted),
                                           base_dtype ? ", like the model that loads them" : ", as in config.json"));
}

/// Notes that tensors are float32, float16 or bfloat16 although config.json declares another dtype, and how to cast
/// them. If no training program saved the checkpoint, only if all floats are. Also notes an invalid dtype in
/// config.json.
void note_config_dtype(Files& files, Draft& draft) {
  Checkpoint& source = draft.source;
  if (source.config.path.empty() || !source.adapters.empty()) return;
  try {
    read_config(files, source);
  } catch (const Error& error) {  // next to a lone file, config.json need not be a model's
    if (error.kind() == ErrorKind::kIo) throw;
    return;
  }
  std::optional<DType> wanted;
  try {
    wanted = config_dtype(read_config(files, source));
  } catch (const Error& error) {
    draft.source.notes.mismatch(fmt::format("{}; `dtype` corrects it", error.what()));
    return;
  }
  if (!wanted) return;
  const Widths widths = widths_of(draft);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto count = std::count_if(draft.wanted.begin(), draft.wanted.end(), [&](const LogicalTensor& tensor) {
      return tensor.dtype == dtype && dtype != wanted && !keeps_dtype(source, tensor.name) &&
             !(dtype == DType::kF32 && stays_float32(draft, tensor, *wanted, widths));
    });
    const auto others = std::count_if(draft.wanted.begin(), draft.wanted.end(), [&](const LogicalTensor& tensor) {
      return tensor.dtype != dtype && describe(tensor.dtype).kind == DTypeClass::kFloat;
    });
    // A model of an unknown family may have a few parameters in float32.
    if (count == 0 || (source.beside_model ? count < others : others > 0)) continue;
    draft.source.notes.hint(fmt::format(
        "{} tensor{} {}{}, although config.json has {}: `dtype` {} casts {}", count, count == 1 ? " is" : "s are",
        describe(dtype).torch_name, dtype == DType::kF32 && source.beside_model ? ", as in training" : "",
        describe(*wanted).torch_name, describe(*wanted).torch_name, count == 1 ? "it" : "them"));
  }
}

}  // namespace

std::optional<DType> plain_dtype(const Draft& draft) {
  std::map<DType, std::size_t> counts;
  for (const LogicalTensor& tensor : draft.wanted)
    if (is_plain(tensor.dtype) && !keeps_dtype(draft.source, tensor.name)) ++counts[tensor.dtype];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? std::nullopt : std::optional(most->first);
}

void cast(Files& files, Draft& draft, const Request& request, std::optional<DType> base_dtype) {
  std::vector<DType> before;
  for (const LogicalTensor& tensor : draft.wanted) before.push_back(tensor.dtype);
  draft.config_dtype = request.dtype;
  if (request.dtype) {
    cast_to_request(draft, request, read_ordered_config(files, draft.source.config.path));
  } else {
    cast_to_model(draft);
    cast_to_config(files, draft, *request.target.layout, base_dtype);
    const LayoutTraits& target = request.target.layout->traits();
    const bool goes_on = target.has_ranks() && draft.source.beside_model;  // for training, where float32 is intended
    if (!target.casts_to_config_dtype && !goes_on) note_config_dtype(files, draft);
  }
  std::map<DType, std::size_t> counts;
  for (std::size_t i = 0; i < before.size(); ++i)
    if (draft.wanted[i].dtype != before[i]) ++counts[draft.wanted[i].dtype];
  for (const auto& [dtype, count] : counts) draft.transforms.push_back({Applied::Transform::kCast, count, dtype});
}

}  // namespace reshard
