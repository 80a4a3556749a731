// Architectures that Transformers has: a tiny checkpoint of each, with names and shapes as its own code saves them
// (testdata/architectures), is cut over meshes and consolidated again.

#include "support/architectures.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/specs/model/language_model.h"
#include "support/checkpoints.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"

namespace reshard::test {
namespace {

using nlohmann::json;

/// All targets, or of RESHARD_TEST_SHARE equal parts one, another for each architecture.
std::vector<ShardsOf> targets_of(std::size_t architecture) {
  std::vector<ShardsOf> all;
  for (const char* name : {"ranks", "optimum", "nxd", "presharded"})
    for (const std::uint32_t tp : {1, 2, 4})
      for (const std::uint32_t pp : {1, 2})
        if (pp == 1 || std::string(name) != "presharded") all.push_back({name, tp, pp});
  std::vector<ShardsOf> share;
  for (std::size_t i = 0; i < all.size(); ++i)
    if ((i + architecture) % std::min<std::uint64_t>(share_of_trials(), all.size()) == 0) share.push_back(all[i]);
  return share;
}

/// Whether NxD's names for the experts of an architecture are known, if it has any.
bool has_nxd_names(const Architecture& of) {
  const std::string type = of.facts.at("config").value("model_type", "");
  return !has_experts(of) || type == "mixtral" || type == "dbrx";
}

TEST_CASE(
    "NxD's training layout is written for every architecture whose experts have known names, and refused for all "
    "others") {
  std::size_t refused = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    CAPTURE(name);
    const TempDir temp;
    const Architecture of = architecture(name);
    const TensorMap tensors = write_architecture(of, temp / "model");
    const auto plan = [&] { plan_shard(shard_request(temp / "model", temp / "out", {.layout = "nxd", .tp = 1})); };
    if (has_nxd_names(of)) {
      CHECK_NOTHROW(plan());
      continue;
    }
    ++refused;
    const Error error = check_refused(plan, {.kind = ErrorKind::kUnsupported,
                                             .path = temp / "model",
                                             .says = "NxD's names and shapes for the experts of ",
                                             .hint = "ranks, optimum",
                                             .unwritten = temp / "out"});
    CHECK(tensors.count(error.tensor()) == 1);
  }
  CHECK(refused > (has_all_seeds() ? 30 : 5));
}

TEST_CASE("Checkpoints of every architecture are sharded over meshes and consolidated to the same bytes") {
  const std::vector<std::string> names = architecture_names();
  REQUIRE(names.size() > 100);
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, names.size()));
  for (const ShardsOf& target : targets_of(index)) {
    DYNAMIC_SECTION(names[index] << ", " << target.layout << ", tp " << target.tp << ", pp " << target.pp) {
      const TempDir temp;
      const Architecture of = architecture(names[index]);
      const TensorMap tensors = write_architecture(of, temp / "model");
      if (target.layout == std::string("nxd") && !has_nxd_names(of)) return;  // refused
      if (!shard_to(temp / "model", temp / "out", target, largest_tp(of))) return;
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
}

TEST_CASE("A model that has adapters of its own is read from ranks without metadata") {
  const std::string layout = GENERATE("nxd", "presharded");
  const TempDir temp;
  const Architecture of = architecture("phi4mm");
  const TensorMap tensors = write_architecture(of, temp / "model");
  REQUIRE(tensors.count("model.layers.0.mlp.down_proj.lora_A.speech.weight") == 1);
  REQUIRE(shard_to(temp / "model", temp / "out", {layout.c_str(), 2, 1}, largest_tp(of)));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
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

/// What one of two ranks holds of a model, under the checkpoint's own names.
TensorMap half_of(const Architecture& of, TensorMap& whole) {
  const TempDir temp;
  whole = write_architecture(of, temp / "model");
  REQUIRE(shard_to(temp / "model", temp / "out", {"presharded", 2, 1}));
  return read_tensors(temp / "out/weights/tp0_sharded_checkpoint.safetensors");
}

void check_split(const TensorMap& rank, const std::string& name, const TensorData& whole,
                 std::optional<std::size_t> dim) {
  CAPTURE(name);
  REQUIRE(rank.count(name) == 1);
  Dims expected = whole.shape;
  if (dim) expected[*dim] /= 2;
  CHECK(rank.at(name).shape == expected);
}

TEST_CASE("What Transformers' own plan splits is split along the same dim") {
  const Architecture of = architecture(GENERATE(from_range(architecture_names())));
  const auto plan = of.facts.find("base_model_tp_plan");
  if (plan == of.facts.end() || !plan->is_object() || plan->empty()) return;
  DYNAMIC_SECTION(of.name) {
    TensorMap tensors;
    const TensorMap rank = half_of(of, tensors);
    const std::string prefix = language_prefix(of);
    std::size_t split = 0;
    for (const auto& [name, whole] : tensors) {
      const auto dim = planned_dim(*plan, name, prefix, whole.shape.size());
      if (!dim) continue;
      check_split(rank, name, whole, dim);
      ++split;
    }
    CHECK(split > 0);
  }
}

TEST_CASE("Architectures without a plan are split as vLLM splits them, and nothing else of them is") {
  const Architecture of = architecture(GENERATE(from_range(architecture_names())));
  const auto facts = of.facts.find("split");
  if (facts == of.facts.end()) return;
  DYNAMIC_SECTION(of.name) {
    TensorMap tensors;
    const TensorMap rank = half_of(of, tensors);
    std::size_t known = 0;
    for (const auto& [name, whole] : tensors) {
      const auto fact = facts->contains(name) ? facts->find(name) : facts->find(starred(name));
      if (fact == facts->end() || fact->is_string()) continue;  // in a way of its own
      check_split(rank, name, whole, fact->is_null() ? std::nullopt : std::optional(fact->get<std::size_t>()));
      ++known;
    }
    CHECK(known > 5);
  }
}

TEST_CASE("Facts of how architectures are split are there") {
  std::size_t planned = 0, split = 0;
  for (const std::string& name : architecture_names()) {
    const json facts = architecture(name).facts;
    const auto plan = facts.find("base_model_tp_plan");
    planned += plan != facts.end() && plan->is_object() && !plan->empty();
    split += facts.contains("split");
  }
  CHECK(planned >= 90);
  CHECK(split >= 50);
}

TEST_CASE("Variants of architectures come back: other sizes, layers, experts, heads, biases, ties") {
  const std::vector<std::string> names = sample_of(architecture_names());
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, names.size()));
  const std::uint64_t seed = 100 + index;
  DYNAMIC_SECTION(names[index] << ", seed " << seed) {
    Random random(seed);
    json config = architecture(names[index]).facts.at("config");
    json& text = config.contains("text_config") ? config["text_config"] : config;
    const auto maybe = [&](const char* key, const json& value) {
      if (text.contains(key) && random() % 2) text[key] = value;
    };
    maybe("intermediate_size", 192);
    maybe("moe_intermediate_size", 48);
    maybe("vocab_size", 288);
    const bool lists_layers = std::any_of(text.begin(), text.end(), [](const json& value) { return value.is_array(); });
    if (!lists_layers) maybe("num_hidden_layers", 5);
    maybe("n_layer", 3);
    maybe("tie_word_embeddings", random() % 2 == 0);
    for (const char* key : {"attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "mamba_proj_bias", "conv_bias",
                            "lm_head_bias", "attention_out_bias", "use_qk_norm", "use_parallel_residual"})
      maybe(key, random() % 2 == 0);
    const std::uint64_t kv_heads = one_of(random, {1, 2, 4});
    maybe("num_key_value_heads", text.value("num_attention_heads", 4) % kv_heads == 0 ? kv_heads : 2);
    maybe("first_k_dense_replace", pick(random, 0, 3));
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
      maybe(key, one_of(random, {2, 6, 8}));
    INFO(config.dump());
    const TempDir temp;
    const TensorMap tensors = write_configured(config, temp / "model", random);
    try {
      plan_shard(shard_request(temp / "model", temp / "out", 2, 2));
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kUsage);
      CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1"));
      return;
    }
    TensorMap back = back_from_shards(temp, tensors, random() % 2 ? "ranks" : "presharded");
    if (back.size() < tensors.size())  // experts in one tensor, as save_pretrained has them
      back = converted(temp / "whole", temp / "apart", {.options = {"experts=separate"}});
    CHECK((back == tensors));
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
    convert(temp / "out", temp / "other", {.layout = "presharded", .pp = 1});
    CHECK((consolidated(temp / "other", temp / "whole") == tensors));

    const Checkpoint original = read_checkpoint(temp / "model", {ConfigUse::kStrict});
    CHECK(verify(read_checkpoint(temp / "out", {ConfigUse::kStrict}).map, original.map, {}, {}).same());
    CHECK(verify(read_checkpoint(temp / "other", {ConfigUse::kStrict}).map, original.map, {}, {}).same());
  }
}

}  // namespace
}  // namespace reshard::test
