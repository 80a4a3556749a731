#include "reshard/specs/config/model_config.h"

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/config/neuron_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kQuantization = "quantization_config";

/// Renames the keys of AutoAWQ's own file to those of transformers.
Json renamed_awq(const Json& awq) {
  Json renamed = awq;
  for (const auto& [own, name] : {std::pair("w_bit", "bits"), {"q_group_size", "group_size"}})
    if (awq.contains(own)) renamed[name] = awq.at(own);
  if (const auto version = renamed.find("version"); version != renamed.end() && version->is_string())
    for (char& c : version->get_ref<std::string&>()) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return renamed;
}

/// Returns the quantization_config of exports that store it in a separate file next to config.json, as AutoGPTQ,
/// AutoAWQ and ModelOpt do; null if there is no such file.
Json separate_quantization(Files& files, const fs::path& directory) {
  const auto read = [&](const char* name, const char* method) {
    if (!files.exists(directory / name)) return Json();
    Json json = read_json_file(files, directory / name, kMaxConfigBytes, JsonDialect::kPython);
    if (json.is_object() && json.contains("quantization") && json.at("quantization").is_object())
      json = Json(json.at("quantization"));
    if (!json.is_object()) return Json();
    if (!json.contains("quant_method")) json["quant_method"] = method;
    return json;
  };
  if (Json gptq = read("quantize_config.json", "gptq"); !gptq.is_null()) return gptq;
  if (const Json awq = read("quant_config.json", "awq"); !awq.is_null()) return renamed_awq(awq);
  return read("hf_quant_config.json", "modelopt");
}

}  // namespace

std::optional<fs::path> find_model_config(Files& files, const fs::path& directory) {
  if (files.exists(directory / kConfigFile)) return directory / kConfigFile;
  const fs::path compiled = directory / kNeuronConfigFile;
  if (!files.exists(compiled)) return std::nullopt;
  try {
    if (has_model_config(read_json_file(files, compiled, kMaxConfigBytes, JsonDialect::kPython))) return compiled;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput) throw;  // readers of the file report the error
  }
  return std::nullopt;
}

ModelConfig read_model_config(Files& files, const std::filesystem::path& directory) {
  const auto file = find_model_config(files, directory);
  if (!file)
    throw Error(ErrorKind::kBadInput, "contains no config.json, which describes the tensors")
        .in(directory)
        .hint(
            "give the model's own directory, with config.json next to the weights, or set `config` to its path; "
            "without one, describe the model with `spec`");
  return read_model_config_file(files, *file);
}

ModelConfig empty_model_config(std::string model_type) {
  return {{}, std::make_shared<const Json>(Json::object()), std::move(model_type)};
}

ModelConfig read_model_config_file(Files& files, const std::filesystem::path& file) {
  ModelConfig config;
  config.path = file;
  Json content;
  try {
    content = read_json_file(files, config.path, kMaxConfigBytes, JsonDialect::kPython);
  } catch (Error& error) {
    if (error.hint().empty() && error.kind() == ErrorKind::kBadInput)
      error.hint("correct the file, or copy it again from the model; `config` takes one from elsewhere");
    throw;
  }
  config.json = std::make_shared<const Json>(has_model_config(content) ? model_config_of(content) : std::move(content));
  const JsonObject object(*config.json, config.path);
  if (object.has("model_type") && !object.at("model_type").is_null())
    config.model_type = object.string_at("model_type");
  const auto given = config.json->find(kQuantization);
  if (given != config.json->end() && !given->is_null()) return config;
  if (Json separate = separate_quantization(files, file.parent_path()); !separate.is_null()) {
    Json json = *config.json;
    json[kQuantization] = std::move(separate);
    config.json = std::make_shared<const Json>(std::move(json));
  }
  return config;
}

}  // namespace reshard
