#include "reshard/plan/transforms/config_dtype.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/neuron_config.h"

namespace reshard {
namespace {

constexpr std::array kDTypeKeys = {"torch_dtype", "dtype"};
constexpr std::array kQuantizationKeys = {"quantization_config", "compression_config"};

bool is_quantization_key(std::string_view key) {
  return std::find(kQuantizationKeys.begin(), kQuantizationKeys.end(), key) != kQuantizationKeys.end();
}

/// Transformers writes a model_type into the configuration of each part; files by other writers may lack it.
bool is_part(std::string_view key, const OrderedJson& value) {
  if (!value.is_object() || is_quantization_key(key) || value.contains("quant_method")) return false;
  return key.ends_with("_config") || value.contains("model_type");
}

bool names_dtype(const OrderedJson& value) {
  return value.is_string() && std::any_of(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& row) {
           return *row.torch_name != '\0' && value == row.torch_name;
         });
}

/// \returns whether the value changed.
bool set_dtype(OrderedJson& value, DType dtype) {
  const char* name = describe(dtype).torch_name;
  if (value == name) return false;
  value = name;
  return true;
}

bool set_part_dtype(OrderedJson& part, DType dtype) {
  bool changed = false;
  for (const auto& [key, value] : part.items()) {
    const bool of_part = std::find(kDTypeKeys.begin(), kDTypeKeys.end(), key) != kDTypeKeys.end();
    if (of_part && names_dtype(value)) {
      changed = set_dtype(value, dtype) || changed;
    } else if (is_part(key, value)) {
      changed = set_part_dtype(value, dtype) || changed;
    }
  }
  return changed;
}

template <typename AnyJson>
bool erase_quantization_in(AnyJson& config) {
  if (!config.is_object()) return false;
  bool changed = false;
  for (const char* key : kQuantizationKeys) changed = config.erase(key) > 0 || changed;
  for (auto& part : config) changed = erase_quantization_in(part) || changed;
  return changed;
}

}  // namespace

OrderedJson read_compiled_config(Files& files, const std::filesystem::path& file) {
  if (file.empty() || file.filename() != kNeuronConfigFile) return {};
  const Json json = read_json_file(files, file, kMaxConfigBytes, JsonDialect::kPython);
  if (!has_model_config(json)) return {};
  return parse_ordered_json(json_text(model_config_of(json)), file, JsonDialect::kPython);
}

OrderedJson read_ordered_config(Files& files, const std::filesystem::path& file) {
  if (file.empty()) return {};
  if (OrderedJson compiled = read_compiled_config(files, file); !compiled.is_null()) return compiled;
  try {
    return parse_ordered_json(read_text_file(files, file, kMaxConfigBytes), file, JsonDialect::kPython);
  } catch (const Error& error) {  // a file next to a single weights file is copied unchanged
    if (error.kind() == ErrorKind::kIo) throw;
    return {};
  }
}

bool set_config_dtype(OrderedJson& config, DType dtype) {
  if (!config.is_object()) return false;
  bool changed = set_part_dtype(config, dtype);
  for (const char* key : kDTypeKeys)  // whatever the value
    if (config.contains(key)) changed = set_dtype(config[key], dtype) || changed;
  return changed;
}

bool erase_quantization(OrderedJson& config) {
  return erase_quantization_in(config);
}

bool erase_quantization(Json& config) {
  return erase_quantization_in(config);
}

bool is_quantized_config(const OrderedJson& config) {
  if (!config.is_object()) return false;
  for (const auto& [key, value] : config.items()) {
    if (is_quantization_key(key) && !value.empty()) return true;
    if (is_part(key, value) && is_quantized_config(value)) return true;
  }
  return false;
}

}  // namespace reshard
