// Architectures that Transformers has: a tiny checkpoint of each, with names and shapes as its own code saves them
// (testdata/architectures), is cut over meshes and consolidated again.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/verify.h"
#include "reshard/layouts/checkpoint.h"
#include "reshard/specs/family.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using json = nlohmann::json;

struct Architecture {
  std::string name;
  json facts;
};

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(testdata("architectures"))) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

Architecture architecture(const std::string& name) {
  return {name, json::parse(read_file(testdata("architectures") / (name + ".json")))};
}

/// config.json and one file of weights, of random numbers.
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

struct Target {
  const char* layout;
  std::uint32_t tp, pp;
};

/// All targets, or of RESHARD_TEST_SHARE equal parts one, another for each architecture.
std::vector<Target> targets_of(std::size_t architecture) {
  std::vector<Target> all;
  for (const char* name : {"ranks", "optimum", "presharded"})
    for (const std::uint32_t tp : {1, 2, 4})
      for (const std::uint32_t pp : {1, 2})
        if (pp == 1 || std::string(name) != "presharded") all.push_back({name, tp, pp});
  std::vector<Target> share;
  for (std::size_t i = 0; i < all.size(); ++i)
    if ((i + architecture) % std::min<std::uint64_t>(share_of_trials(), all.size()) == 0) share.push_back(all[i]);
  return share;
}

/// Shards for `target`; false where its ranks do not divide the model, which is said with the degrees that do.
bool shard_to(const fs::path& model, const fs::path& output, const Target& target) {
  ShardRequest request = shard_request(model, output, target.tp, target.pp);
  request.target.layout = layout(target.layout);
  if (std::string(target.layout) == "optimum") request.target.format = Format::kPytorch;
  try {
    shard(request);
    return true;
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1, 2"));
    CHECK(target.tp == 4);
    return false;
  }
}

TEST_CASE("Checkpoints of every architecture are cut over meshes and consolidated to the same bytes") {
  const std::vector<std::string> names = architecture_names();
  REQUIRE(names.size() > 100);
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, names.size()));
  for (const Target& target : targets_of(index)) {
    DYNAMIC_SECTION(names[index] << ", " << target.layout << ", tp " << target.tp << ", pp " << target.pp) {
      const TempDir temp;
      const TensorMap tensors = write_architecture(architecture(names[index]), temp / "model");
      if (!shard_to(temp / "model", temp / "out", target)) return;
      ConsolidateRequest back;
      back.source.path = temp / "out";
      back.output_directory = temp / "whole";
      consolidate(back);
      CHECK((read_tensors(temp / "whole/model.safetensors") == tensors));
    }
  }
}

/// A name with stars for its numbers.
std::string starred(const std::string& name) {
  std::string out;
  for (const std::string& part : split(name, '.'))
    out += (out.empty() ? "" : ".") +
           (part.find_first_not_of("0123456789") == std::string::npos ? std::string("*") : part);
  return out;
}

/// What the language model's names begin with.
std::string language_prefix(const Architecture& of) {
  for (const auto& [name, facts] : of.facts.at("tensors").items())
    for (const std::string embedding : {"embed_tokens.weight", "embed_in.weight", "wte.weight"})
      if (name == embedding || name.ends_with("." + embedding)) return name.substr(0, name.size() - embedding.size());
  FAIL(of.name << " has no embedding");
  return {};
}

/// The dim that Transformers' own plan splits; nothing where it splits none, or says nothing.
std::optional<std::size_t> planned_dim(const json& plan, const std::string& name, const std::string& prefix,
                                       std::size_t ndim) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string own = starred(name.substr(prefix.size()));
  const bool is_bias = own.ends_with(".bias");
  const std::string module = own.substr(0, own.rfind('.'));
  const auto found = plan.contains(own) ? plan.find(own) : plan.find(module);
  if (found == plan.end() || ndim == 0) return std::nullopt;
  std::string word = found->get<std::string>();
  if (word.starts_with("local_")) word = word.substr(6);
  // A router, whose outputs are gathered: every rank has it all.
  if (word == "colwise_rep" && (module.ends_with(".gate") || module.ends_with(".router"))) return std::nullopt;
  if (word.starts_with("colwise")) return is_bias || ndim == 1 ? ndim - 1 : ndim - 2;
  if (word.starts_with("rowwise") || word == "packed_rowwise") return is_bias ? std::nullopt : std::optional(ndim - 1);
  return std::nullopt;
}

TEST_CASE("What Transformers' own plan splits is split along the same dim") {
  const Architecture of = architecture(GENERATE(from_range(architecture_names())));
  if (!of.facts.at("base_model_tp_plan").is_object() || of.facts.at("base_model_tp_plan").empty()) return;
  DYNAMIC_SECTION(of.name) {
    const TempDir temp;
    const TensorMap tensors = write_architecture(of, temp / "model");
    REQUIRE(shard_to(temp / "model", temp / "out", {"presharded", 2, 1}));
    const TensorMap rank = read_tensors(temp / "out/weights/tp0_sharded_checkpoint.safetensors");
    const std::string prefix = language_prefix(of);
    std::size_t split = 0;
    for (const auto& [name, whole] : tensors) {
      const auto dim = planned_dim(of.facts.at("base_model_tp_plan"), name, prefix, whole.shape.size());
      if (!dim) continue;
      Dims expected = whole.shape;
      expected[*dim] /= 2;
      CAPTURE(name);
      REQUIRE(rank.count(name) == 1);
      CHECK(rank.at(name).shape == expected);
      ++split;
    }
    CHECK(split > 0);
  }
}

TEST_CASE("Every architecture's shards are verified against it, and converted to another layout") {
  const std::vector<std::string> names = architecture_names();
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, names.size()));
  if (index % std::min<std::uint64_t>(share_of_trials(), 8) != 0) return;
  DYNAMIC_SECTION(names[index]) {
    const TempDir temp;
    const TensorMap tensors = write_architecture(architecture(names[index]), temp / "model");
    REQUIRE(shard_to(temp / "model", temp / "out", {"ranks", 2, 2}));
    ConvertRequest request = convert_request(temp / "out", temp / "other");
    request.target.layout = layout("presharded");
    request.target.pp = 1;
    convert(request);
    CHECK((consolidated(temp / "other", temp / "whole") == tensors));
  }
}

}  // namespace
}  // namespace reshard::test
