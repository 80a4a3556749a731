#include "support/architectures.h"

#include <algorithm>

#include "reshard/specs/model/language_model.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/requests.h"

namespace reshard::test {

namespace fs = std::filesystem;

using nlohmann::json;

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(testdata("architectures"))) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

Architecture architecture(const std::string& name) {
  return {name, json::parse(read_file(testdata("architectures") / (name + ".json")))};
}

std::uint32_t largest_tp(const Architecture& of) {
  return of.facts.contains("largest_tp") ? of.facts.at("largest_tp").get<std::uint32_t>() : 4;
}

bool has_experts(const Architecture& of) {
  const auto names = of.facts.at("tensors").items();
  return std::any_of(names.begin(), names.end(), [](const auto& tensor) {
    return tensor.key().find("expert") != std::string::npos || tensor.key().find("moe.") != std::string::npos;
  });
}

TensorMap write_architecture(const Architecture& of, const fs::path& directory) {
  Random random(11);
  TensorMap tensors;
  for (const auto& [name, facts] : of.facts.at("tensors").items())
    tensors[name] =
        random_tensor(random, dtype_from_name(facts.at(0).get<std::string>()).value(), facts.at(1).get<Dims>());
  fs::create_directories(directory);
  write_file(directory / "config.json", of.facts.at("config").dump(2));
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

TensorMap write_configured(const json& config, const fs::path& directory, Random& random) {
  write_file(directory / "config.json", config.dump());
  TensorMap tensors;
  for (const ModelParameter& p : instantiate(read_model_config(directory)).parameters)
    if (p.tied_to.empty() && !p.optional) tensors[p.name] = random_tensor(random, DType::kBF16, p.shape);
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

bool shard_to(const fs::path& model, const fs::path& output, const ShardsOf& target, std::uint32_t largest_tp) {
  try {
    shard(model, output, {.layout = target.layout, .tp = target.tp, .pp = target.pp});
    return true;
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1, 2"));
    CHECK(target.tp > largest_tp);
    return false;
  }
}

TensorMap back_from_shards(const TempDir& temp, const TensorMap& tensors, const std::string& layout_name) {
  write_safetensors(temp / "model/model.safetensors", tensors);
  fs::remove_all(temp / "out");
  REQUIRE(shard_to(temp / "model", temp / "out", {layout_name.c_str(), 2, layout_name == "presharded" ? 1u : 2u}));
  const auto has = [&](const char* part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.first.find(part) != std::string::npos; });
  };
  RequestFields fields;  // experts that are apart are packed as Transformers 5 saves them, unless that is not wanted
  if (has(".experts.0.") && !has(".experts.down_proj")) fields.options = {"experts=separate"};
  return consolidated(temp / "out", temp / "whole", fields);
}

Error refusal_of(const TempDir& temp, const TensorMap& tensors) {
  write_safetensors(temp / "model/model.safetensors", tensors);
  return error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 2, 2)); });
}

}  // namespace reshard::test
