#include "reshard/specs/model_config.h"

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/io/text_file.h"

namespace reshard {

ModelConfig read_model_config(Files& files, const std::filesystem::path& directory) {
  if (!files.exists(directory / kConfigFile))
    throw Error(ErrorKind::kBadInput, "holds no config.json, which says what the tensors are")
        .in(directory)
        .hint("give the model's own directory, with config.json beside the weights");
  return read_model_config_file(files, directory / kConfigFile);
}

ModelConfig read_model_config_file(Files& files, const std::filesystem::path& file) {
  ModelConfig config;
  config.path = file;
  config.json = std::make_shared<const Json>(read_json_file(files, config.path, kMaxConfigBytes, JsonDialect::kPython));
  const JsonObject object(*config.json, config.path);
  if (!object.has("model_type"))
    throw Error(ErrorKind::kBadInput, "has no \"model_type\", which names the model's family").in(config.path);
  config.model_type = object.string_at("model_type");
  return config;
}

}  // namespace reshard
