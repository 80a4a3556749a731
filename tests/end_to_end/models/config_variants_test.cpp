// Variants of the architectures in testdata/architectures: each boolean of config.json turned, and heads that are tied,
// stored, absent, equal to the embedding or different, whatever the levels of config.json say of them.

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>

#include "reshard/base/strings.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/config/ties.h"
#include "reshard/specs/model/language_model.h"
#include "support/architectures.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

using nlohmann::json;

constexpr const char* kTied = "tie_word_embeddings";

/// Trials per one that is run. There are thousands: a run that takes a part of all trials takes a third of that here.
std::size_t trials_per_run() {
  return share_of_trials() == 1 ? 1 : 3 * share_of_trials();
}

/// Calls `action` with the number of each trial that is run.
template <typename Action>
void for_share(std::size_t trials, std::size_t first, Action&& action) {
  for (std::size_t i = 0; i < trials; ++i)
    if ((first + i) % trials_per_run() == 0) action(i);
}

/// The nested configurations, from the outermost to the language model's.
std::vector<json*> levels_of(json& config) {
  std::vector<json*> levels{&config};
  const auto next = [&]() -> json* {
    for (const char* key : {"text_config", "llm_config", "language_config", "thinker_config"})
      if (levels.back()->contains(key) && levels.back()->at(key).is_object()) return &levels.back()->at(key);
    return nullptr;
  };
  while (json* inner = next()) levels.push_back(inner);
  return levels;
}

/// The level and the key of each boolean.
std::vector<std::pair<std::size_t, std::string>> booleans_of(json config) {
  std::vector<std::pair<std::size_t, std::string>> found;
  const std::vector<json*> levels = levels_of(config);
  for (std::size_t level = 0; level < levels.size(); ++level)
    for (const auto& [key, value] : levels[level]->items())
      if (value.is_boolean() && key != kTied) found.emplace_back(level, key);
  return found;
}

std::string layout_of(std::size_t trial) {
  return trial / trials_per_run() % 2 ? "ranks" : "presharded";
}

TEST_CASE("Every architecture with any boolean of its config.json turned comes back from shards") {
  std::size_t trials = 0, checked = 0;
  for (const std::string& name : architecture_names()) {
    const json original = architecture(name).facts.at("config");
    const auto booleans = booleans_of(original);
    for_share(booleans.size(), trials, [&](std::size_t i) {
      const auto& [level, key] = booleans[i];
      json config = original;
      json& value = levels_of(config)[level]->at(key);
      value = !value.get<bool>();
      CAPTURE(name, level, key, value);
      const TempDir temp;
      Random random(trials + i);
      TensorMap tensors;
      try {
        tensors = write_configured(config, temp / "model", random);
        plan_shard(shard_request(temp / "model", temp / "none", 2));
      } catch (const Error& error) {
        INFO(error.what());
        CHECK(!error.hint().empty());  // sizes that the switch needs, or heads that two ranks do not divide
        return;
      }
      CHECK((back_from_shards(temp, tensors, layout_of(trials + i)) == tensors));
      ++checked;
    });
    trials += booleans.size();
  }
  CHECK(trials > 500);
  CHECK(checked * trials_per_run() > trials / 2);
}

using Shapes = std::map<std::string, Dims>;

/// The tensors of a checkpoint with a config.json.
struct ConfiguredTensors {
  Shapes required;
  std::set<std::string> optional;  // numbers as stars
};

ConfiguredTensors tensors_of(const json& config, const Architecture& of) {
  const TempDir temp;
  write_file(temp / "config.json", config.dump());
  std::vector<std::string> stored;
  for (const auto& [name, facts] : of.facts.at("tensors").items()) stored.push_back(name);
  const std::unordered_set<std::string_view> names(stored.begin(), stored.end());
  ConfiguredTensors tensors;
  for (const ModelParameter& p : instantiate(find_language_model(read_model_config(temp.path())), names).parameters)
    if (p.optional)
      tensors.optional.insert(with_stars(p.name));
    else if (p.tied_to.empty())
      tensors.required[p.name] = p.shape;
  return tensors;
}

/// The names in `these` that `others` lacks, numbers as stars.
std::set<std::string> not_among(const Shapes& these, const Shapes& others) {
  std::set<std::string> names;
  for (const auto& [name, shape] : these)
    if (others.count(name) == 0) names.insert(with_stars(name));
  return names;
}

std::set<std::string> resized(const Shapes& before, const Shapes& after) {
  std::set<std::string> names;
  for (const auto& [name, shape] : before)
    if (const auto found = after.find(name); found != after.end() && found->second != shape)
      names.insert(with_stars(name));
  return names;
}

TEST_CASE("Each boolean of config.json switches the tensors that the modelling code switches") {
  const json all = json::parse(read_file(testdata("configuration.json")));
  std::size_t checked = 0;
  for (const auto& [name, switches] : all.items()) {
    const Architecture of = architecture(name);
    const json original = of.facts.at("config");
    const ConfiguredTensors as_is = tensors_of(original, of);
    for (const auto& [key, facts] : switches.items()) {
      if (key == "defaults") continue;
      CAPTURE(name, key);
      json config = original;
      levels_of(config).back()->operator[](key) = facts.at("is");
      CHECK((tensors_of(config, of).required == as_is.required));
      levels_of(config).back()->operator[](key) = !facts.at("is").get<bool>();
      const ConfiguredTensors turned = tensors_of(config, of);
      const auto check = [&, &facts = facts](const char* what, std::set<std::string> found) {
        CAPTURE(what);
        std::set<std::string> listed;
        if (facts.contains(what)) listed = facts.at(what).get<std::set<std::string>>();
        for (std::set<std::string>* names : {&found, &listed})
          std::erase_if(*names, [&](const std::string& one) {
            return as_is.optional.count(one) > 0 || turned.optional.count(one) > 0;
          });
        CHECK(found == listed);
      };
      check("adds", not_among(turned.required, as_is.required));
      check("removes", not_among(as_is.required, turned.required));
      check("resizes", resized(as_is.required, turned.required));
      if (facts.contains("absent")) {
        levels_of(config).back()->erase(key);
        CHECK((tensors_of(config, of).required == (facts.at("absent") == facts.at("is") ? as_is : turned).required));
      }
      ++checked;
    }
  }
  CHECK(checked > 150);
}

/// The tensors that a config.json needs, or why it is refused.
std::pair<Shapes, std::string> tensors_or_refusal(const json& config, const Architecture& of) {
  try {
    return {tensors_of(config, of).required, ""};
  } catch (const Error& error) {
    return {Shapes(), error.message()};
  }
}

TEST_CASE("A key that config.json lacks has the value of Transformers' configuration class") {
  const json all = json::parse(read_file(testdata("configuration.json")));
  std::size_t checked = 0;
  for (const auto& [name, facts] : all.items()) {
    if (!facts.contains("defaults")) continue;
    const Architecture of = architecture(name);
    for (const auto& [key, value] : facts.at("defaults").items()) {
      CAPTURE(name, key, value);
      json absent = of.facts.at("config"), given = absent;
      levels_of(absent).back()->erase(key);
      levels_of(given).back()->operator[](key) = value;
      CHECK((tensors_or_refusal(absent, of) == tensors_or_refusal(given, of)));
      ++checked;
    }
  }
  CHECK(checked > 200);
}

/// What base models, which AutoModel and sentence-transformers save, lack in their names; empty for other architectures.
std::string base_prefix(const Architecture& of) {
  for (std::string prefix : {"model.", "transformer.", "gpt_neox.", "backbone."})
    for (const auto& [name, facts] : of.facts.at("tensors").items())
      if (name.starts_with(prefix)) return prefix;
  return {};
}

TEST_CASE("Every architecture that is saved without its head comes back from shards") {
  std::size_t trials = 0, checked = 0;
  for (const std::string& name : architecture_names()) {
    const Architecture of = architecture(name);
    const std::string prefix = base_prefix(of);
    if (prefix.empty() || name == "molmo") continue;  // whose parts are told by names with the prefix
    // Always those whose layers lie deeper than their embeddings.
    const bool is_deeper = name.starts_with("plamo") || name == "t5gemma" || name == "chatglm";
    if (trials++ % trials_per_run() != 0 && !is_deeper) continue;
    CAPTURE(name, prefix);
    const TempDir temp;
    TensorMap tensors;
    for (auto& [stored, tensor] : write_architecture(of, temp / "model"))
      if (stored.starts_with(prefix)) tensors[stored.substr(prefix.size())] = std::move(tensor);
    write_safetensors(temp / "model/model.safetensors", tensors);
    if (!shard_to(temp / "model", temp / "out", {"ranks", 2, 1}, largest_tp(of))) continue;
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    ++checked;
  }
  CHECK(checked * trials_per_run() > 200);
}

enum class Head : std::uint8_t { kDifferent, kEqual, kAbsent, kAlone };

/// What the levels of config.json say of tied embeddings, and how the files have the head.
struct TieTrial {
  std::optional<bool> outer, inner;
  Head head;
};

std::vector<TieTrial> tie_trials(bool is_nested) {
  std::vector<TieTrial> trials;
  for (const std::optional<bool> inner : {std::optional<bool>(), std::optional(false), std::optional(true)})
    for (const std::optional<bool> outer : {std::optional<bool>(), std::optional(false), std::optional(true)})
      for (const Head head : {Head::kDifferent, Head::kEqual, Head::kAbsent, Head::kAlone})
        if (is_nested || !outer) trials.push_back({outer, inner, head});
  return trials;
}

void set_tied(json& level, const std::optional<bool>& value) {
  if (value)
    level[kTied] = *value;
  else
    level.erase(kTied);
}

/// The head and the embedding of an architecture; std::nullopt for one whose head is never tied, or may be missing.
std::optional<TiedParameter> tie_of(const ModelConfig& config, const TensorMap& tensors) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  const LanguageModel found = find_language_model(config);
  if (!found.family) return std::nullopt;
  const Model model = instantiate(found, names);
  const auto ties = possible_ties(model);
  const bool is_optional =
      std::any_of(model.family->modules.begin(), model.family->modules.end(),
                  [](const Family::Module& module) { return !module.tied_to.empty() && module.optional; });
  if (ties.empty() || is_optional || tensors.count(ties.front().source) == 0) return std::nullopt;
  const auto head = tensors.find(ties.front().name);
  const bool fits = head == tensors.end() || head->second.shape == tensors.at(ties.front().source).shape;
  return fits ? std::optional(ties.front()) : std::nullopt;
}

TEST_CASE("The files decide whether embeddings are tied, in every architecture and at each level") {
  std::size_t trials = 0, checked = 0;
  for (const std::string& name : architecture_names()) {
    const Architecture of = architecture(name);
    json original = of.facts.at("config");
    const bool is_nested = levels_of(original).size() > 1;
    const std::vector<TieTrial> all = tie_trials(is_nested);
    for_share(all.size(), trials, [&](std::size_t i) {
      const auto& [outer, inner, head] = all[i];
      // Refused, unless the family's embeddings are tied by default.
      if (head == Head::kAlone && inner != true && outer != true) return;
      CAPTURE(name, outer.value_or(false), outer.has_value(), inner.value_or(false), inner.has_value(),
              static_cast<int>(head));
      Architecture changed = of;
      const std::vector<json*> levels = levels_of(changed.facts["config"]);
      if (is_nested) set_tied(*levels.front(), outer);
      set_tied(*levels.back(), inner);
      const TempDir temp;
      TensorMap tensors = write_architecture(changed, temp / "model");
      const auto tie = tie_of(read_model_config(temp / "model"), tensors);
      if (!tie) return;
      const TensorData embedding = tensors.at(tie->source);
      TensorMap expected = tensors;
      tensors.erase(tie->name);
      expected.erase(tie->name);
      Random random(i);
      if (head == Head::kDifferent)
        tensors[tie->name] = expected[tie->name] = random_tensor(random, embedding.dtype, embedding.shape);
      if (head == Head::kEqual || head == Head::kAlone) tensors[tie->name] = embedding;
      if (head == Head::kAlone) tensors.erase(tie->source);
      ++checked;
      const auto said = ties_by_level(changed.facts.at("config"));
      const bool denied = !said.empty() && said.front().first == kTied &&
                          std::none_of(said.begin(), said.end(), [](const auto& level) { return level.second; });
      if (head == Head::kAbsent && denied) {
        write_safetensors(temp / "model/model.safetensors", tensors);
        check_refused(
            [&] { shard(temp / "model", temp / "out", {.layout = "ranks", .tp = 2}); },
            {.tensor = tie->name, .says = "is missing, but config.json asks for it", .unwritten = temp / "out"});
        return;
      }
      TensorMap back = back_from_shards(temp, tensors, layout_of(trials + i));
      if (head == Head::kEqual && back.count(tie->name)) {  // config.json says that it is a tensor of its own
        CHECK((inner != true || (is_nested && outer != true)));
        CHECK((back.at(tie->name) == embedding));
        back.erase(tie->name);
      }
      CHECK((back == expected));
    });
    trials += all.size();
  }
  CHECK(trials > 2000);
  CHECK(checked * trials_per_run() > trials / 2);
}

}  // namespace
}  // namespace reshard::test
