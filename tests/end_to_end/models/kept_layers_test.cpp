// Some layers of a model, numbered from 0.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Returns the layer in a tensor's name; std::nullopt if it is outside the layers.
std::optional<std::uint64_t> layer_of(const std::string& name, const std::string& layers) {
  if (!name.starts_with(layers + ".")) return std::nullopt;
  const std::string rest = name.substr(layers.size() + 1);
  return parse_unsigned(rest.substr(0, rest.find('.')), 1000);
}

/// An architecture, some of whose layers are kept.
struct SomeLayers {
  SomeLayers(const Architecture& of, const fs::path& directory, Random& random)
      : tensors(write_architecture(of, directory)) {
    const LanguageModel found = find_language_model(read_model_config(directory));
    if (!found.family || found.is_part) return;
    layers = found.family->layers;
    std::set<std::uint64_t> all;
    for (const auto& [name, data] : tensors)
      if (const auto layer = layer_of(name, layers)) all.insert(*layer);
    for (const std::uint64_t layer : all) (random() % 2 ? kept : dropped).push_back(layer);
    if (dropped.empty()) kept.clear();
  }

  std::string drop() const {
    std::string pattern;
    for (const std::uint64_t layer : dropped) pattern += (pattern.empty() ? "" : "|") + std::to_string(layer);
    return "^" + layers + "[.](" + pattern + ")[.]";
  }

  /// The tensors of the layers that are kept, with their new numbers, and those outside the layers.
  TensorMap expected() const {
    TensorMap left;
    for (const auto& [name, data] : tensors) {
      const auto layer = layer_of(name, layers);
      const auto place = layer ? std::find(kept.begin(), kept.end(), *layer) : kept.end();
      if (!layer) left[name] = data;
      if (place == kept.end()) continue;
      const std::string old = layers + "." + std::to_string(*layer) + ".";
      left[layers + "." + std::to_string(place - kept.begin()) + "." + name.substr(old.size())] = data;
    }
    return left;
  }

  TensorMap tensors;
  std::string layers;
  std::vector<std::uint64_t> kept, dropped;
};

Request renumbering(const fs::path& source, const fs::path& output, const SomeLayers& some) {
  Request request = convert_request(source, output, {.layout = "hf"});
  request.names.drop.emplace_back("drop", some.drop());
  request.names.renumber_layers = true;
  return request;
}

bool refuses(const Request& request) {
  try {
    plan_convert(request);
    return false;
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    return true;
  }
}

TEST_CASE("Some layers of any architecture are a model that can be sharded, or an error says that they are none") {
  std::size_t written = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    CAPTURE(name);
    const TempDir temp;
    Random random(name.size());
    const SomeLayers some(architecture(name), temp / "model", random);
    if (some.kept.empty()) continue;
    const Request request = renumbering(temp / "model", temp / "less", some);
    try {
      convert(request);
    } catch (const Error& error) {
      CAPTURE(error.what());
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK_FALSE(fs::exists(temp / "less"));
      continue;
    }
    ++written;
    CHECK((read_model(temp / "less") == some.expected()));
    CHECK_NOTHROW(plan_shard(shard_request(temp / "less", temp / "ranks", {.tp = 1})));
    CHECK_NOTHROW(plan_convert(convert_request(temp / "less", temp / "again", {.layout = "hf"})));
    CHECK_THAT(joined_notes(*plan_convert(request)), !Says("`rename`") && !Says("that config.json asks for"));
  }
  CHECK(written > 0);
}

TEST_CASE("A tensor that the source lacks is missed under the new number of its layer, in any architecture") {
  std::size_t missed = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    CAPTURE(name);
    const TempDir temp;
    Random random(name.size());
    const SomeLayers some(architecture(name), temp / "model", random);
    const Request whole = convert_request(temp / "model", temp / "less", {.layout = "hf"});
    if (some.kept.empty() || refuses(renumbering(temp / "model", temp / "less", some))) continue;
    TensorMap rest = some.tensors;
    std::vector<std::string> needed;
    for (const auto& [tensor, data] : rest)
      if (layer_of(tensor, some.layers) == some.kept.back()) needed.push_back(tensor);
    rest.erase(needed[random() % needed.size()]);
    write_safetensors(temp / "model/model.safetensors", rest);
    if (!refuses(whole)) continue;  // the model does not need it
    CHECK(refuses(renumbering(temp / "model", temp / "less", some)));
    ++missed;
  }
  CHECK(missed > 0);
}

}  // namespace
}  // namespace reshard::test
