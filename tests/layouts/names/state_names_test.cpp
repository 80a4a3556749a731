#include "reshard/layouts/names/state_names.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

const std::vector<std::string> kModel{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                      "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"};

std::vector<std::string> with_prefix(const std::string& prefix, std::vector<std::string> names = kModel) {
  for (std::string& name : names) name.insert(0, prefix);
  return names;
}

/// The model's names of all entries.
std::vector<std::string> names_in(const StateNames& found) {
  std::vector<std::string> names;
  for (const NamedEntry& entry : found.entries) names.push_back(entry.name);
  return names;
}

/// A family that has the names, and none.
std::vector<const Family*> families() {
  return {builtin_family("llama").get(), nullptr};
}

/// The first of `entries` are the model's, and all others no names of it.
StateNames check_model_first(const std::vector<std::string>& entries, const Family* family) {
  StateNames found = find_state_names(entries, family);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    CAPTURE(entries[i]);
    CHECK(found.entries[i].name == (i < kModel.size() ? kModel[i] : ""));
  }
  return found;
}

TEST_CASE("The model's names are found under any prefix, with and without a family") {
  std::string long_prefix;  // the longest end that is known counts, whatever parts stand before it
  while (long_prefix.size() < 4000) long_prefix += "model.0.norm.";
  for (const std::string& prefix :
       {std::string(), std::string("model."), std::string("module."), std::string("state_dict.model."),
        std::string("app.model."), std::string("a.0.b."), long_prefix})
    for (const Family* family : families()) {
      CAPTURE(prefix, family != nullptr);
      const StateNames found = find_state_names(with_prefix(prefix), family);
      CHECK(names_in(found) == kModel);
      CHECK(found.fits);
      CHECK((found.prefix == prefix || !found.wrappers.empty()));
    }
}

TEST_CASE("All of every architecture is the model's under the prefixes that training programs have") {
  for (const std::string& name : architecture_names()) {
    const Architecture one = architecture(name);
    std::vector<std::string> names;
    for (const auto& [tensor, facts] : one.facts["tensors"].items()) names.push_back(tensor);
    const auto family = builtin_family(one.facts["model_type"].get<std::string>());
    for (const char* prefix : {"", "model.", "app.model."}) {
      CAPTURE(name, prefix);
      const StateNames found = find_state_names(with_prefix(prefix, names), family.get());
      const std::vector<std::string> in_model = names_in(found);
      CHECK(std::count(in_model.begin(), in_model.end(), "") == 0);
    }
  }
}

TEST_CASE("Without a head, or without the base prefix, names stay as they are behind what is before them") {
  const std::vector<std::string> tied(kModel.begin(), kModel.end() - 1);
  std::vector<std::string> base;
  for (const std::string& name : tied) base.push_back(name.substr(6));
  for (const std::string prefix : {"", "model."})
    CHECK(names_in(find_state_names(with_prefix(prefix, tied), nullptr)) == tied);
  for (const std::string prefix : {"", "x."})
    CHECK(names_in(find_state_names(with_prefix(prefix, base), builtin_family("llama").get())) == base);
}

TEST_CASE("Larger models keep all of their parts, under any prefix of a training program") {
  const std::vector<std::vector<std::string>> models{
      {"model.language_model.layers.0.self_attn.q_proj.weight", "model.visual.blocks.0.attn.proj.weight",
       "lm_head.weight"},
      {"model.language_model.layers.0.self_attn.q_proj.weight", "model.visual.blocks.0.attn.proj.weight"},
      {"language_model.model.layers.0.self_attn.q_proj.weight", "language_model.lm_head.weight",
       "vision_tower.encoder.weight"},
      {"language.model.layers.0.self_attn.q_proj.weight", "language.lm_head.weight", "vision.norm.weight", "newline"},
      {"thinker.model.layers.0.self_attn.q_proj.weight", "thinker.lm_head.weight", "code2wav.codes"},
      {"model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.attn.proj.weight", "lm_head.weight"}};
  for (const std::vector<std::string>& model : models)
    for (const char* prefix : {"", "model.", "module.", "state_dict.model."})
      for (const Family* family : {builtin_family("qwen3").get(), static_cast<const Family*>(nullptr)}) {
        CAPTURE(model.front(), prefix, family != nullptr);
        CHECK(names_in(find_state_names(with_prefix(prefix, model), family)) == model);
      }
}

TEST_CASE("A model of which config.json says that it has several parts keeps all of them, whatever they are called") {
  const std::vector<std::string> model{"speaker.model.layers.0.self_attn.q_proj.weight", "ear.conv.weight"};
  const auto family = builtin_family("qwen3");
  for (const char* prefix : {"", "model.", "state_dict.model."})
    CHECK(names_in(find_state_names(with_prefix(prefix, model), {family.get(), true})) == model);
  CHECK(find_state_names(model, family.get()).entries[1].name.empty());

  std::vector<std::string> entries = with_prefix("app.model.");
  entries.emplace_back("app.seen_tokens");  // of the trainer
  CHECK(find_state_names(entries, {family.get(), true}).prefix == "app.model.");
}

TEST_CASE("Of a model and its average, the model is taken") {
  for (const std::string average : {"ema.", "model_ema.", "ema_state_dict."})
    for (const std::string prefix : {"model.", "module.", "state_dict.", "model_state_dict.", "weights.", "a.model."})
      for (const Family* family : families()) {
        CAPTURE(average, prefix, family != nullptr);
        std::vector<std::string> entries = with_prefix(prefix);
        for (const std::string& name : with_prefix(average)) entries.push_back(name);
        CHECK(check_model_first(entries, family).prefix == prefix);
        std::rotate(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(kModel.size()), entries.end());
        CHECK(find_state_names(entries, family).prefix == prefix);
      }
}

TEST_CASE("Training states are not the model's, though they have its names inside") {
  std::vector<std::string> entries = with_prefix("model.");
  for (const std::string& name : kModel)
    for (const std::string& state : {"optim.state." + name + ".exp_avg", "optim.state." + name + ".step",
                                     "optimizer.state." + name, "optimizer.param_groups." + name + ".lr"})
      entries.push_back(state);
  entries.insert(entries.end(), {"lr_scheduler.last_epoch", "train_state.step", "dataloader.dp_rank_0"});
  check_model_first(entries, nullptr);
}

TEST_CASE("States are the optimizer's wherever a training program has put it") {
  for (const std::string root : {"app.optim.", "optimizer_0.", "opt.", "state.optimizers.Adam.", "a.b.c."})
    for (const char* prefix : {"model.", "app.model.", "state.model."})
      for (const Family* family : families()) {
        CAPTURE(root, prefix, family != nullptr);
        std::vector<std::string> entries = with_prefix(prefix);
        for (const std::string& name : kModel)
          for (const char* state : {".exp_avg_sq_row", ".step", ".of.any.name"})
            entries.push_back(root + "state." + name + state);
        const StateNames found = check_model_first(entries, family);
        for (std::size_t i = 0; i < entries.size(); ++i) CHECK(found.optimizer.has(entries[i]) == (i >= kModel.size()));
      }
}

TEST_CASE("Objects of groups of parameters tell where the optimizer is, without a family and without moments") {
  const std::vector<std::string> entries{"net.a.weight", "net.b.weight", "run.sgd.state.a.weight.sums"};
  const std::vector<std::string> objects{"run.sgd.param_groups.0.lr"};
  const StateNames alone = find_state_names(entries, nullptr);
  CHECK(names_in(alone) == entries);
  const StateNames found = find_state_names(entries, nullptr, objects);
  CHECK(found.optimizer.has(objects[0]));
  CHECK(found.prefix == "net.");
  CHECK(names_in(found) == std::vector<std::string>{"a.weight", "b.weight", ""});
  CHECK(state_names_note(found) == "names of tensors are read without the prefix net., as in the optimizer");
}

TEST_CASE("An optimizer that lies elsewhere says what the prefix of unknown names is, behind wrappers, too") {
  const std::vector<std::string> entries{"model._orig_mod.a.weight", "model._orig_mod.b.weight", "step"};
  const std::vector<std::string> beside{"optimizer.state.a.weight.exp_avg", "optimizer.param_groups.0.lr"};
  const StateNames found = find_state_names(entries, nullptr, beside);
  CHECK_FALSE(found.fits);
  CHECK(found.prefix == "model.");
  CHECK(names_in(found) == std::vector<std::string>{"a.weight", "b.weight", ""});
  CHECK(state_names_note(found) ==
        "names of tensors are read without the prefix model., as in the optimizer, and without _orig_mod");
  CHECK(names_in(find_state_names(entries, nullptr)) ==
        std::vector<std::string>{"model.a.weight", "model.b.weight", "step"});
}

TEST_CASE("A module that is called state is no optimizer") {
  const std::vector<std::string> entries{"state.model.a.weight", "state.model.b.exp_decay", "state.loop.inner.step",
                                         "enc.state.proj.bias"};
  CHECK(names_in(find_state_names(entries, nullptr)) == entries);
}

TEST_CASE("Names alone tell the optimizer where they are the usual ones") {
  const OptimizerEntries none;
  CHECK(none.has("optim.param_groups.0.lr"));
  CHECK(none.has("state.lm_head.weight.exp_avg_sq"));
  CHECK_FALSE(none.has("train_state.step"));
  CHECK_FALSE(none.has("opt.state.lm_head.weight.step"));
  CHECK(none.parameter_of("optim.state.a.weight.step").empty());
  const std::vector<std::string> entries{"optim.state.a.weight.step"};
  CHECK(OptimizerEntries(entries, {}).parameter_of("optim.state.model.state.w.exp_avg") == "model.state.w");
}

TEST_CASE("What wraps modules is taken out of names, wherever it stands") {
  const std::vector<std::string> entries{
      "model._orig_mod.model.embed_tokens.weight",
      "model._orig_mod.model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.self_attn.q_proj.weight",
      "model._orig_mod.model.layers.1.mlp.down_proj.weight", "model.model.norm.weight", "model.lm_head.weight"};
  const StateNames found = find_state_names(entries, nullptr);
  CHECK(names_in(found) == kModel);
  CHECK(found.prefix == "model.");
  CHECK(state_names_note(found) ==
        "names of tensors are read without the prefix model. and without _checkpoint_wrapped_module, "
        "_fsdp_wrapped_module, _orig_mod");
  const std::vector<std::string> modules{
      "module.model.embed_tokens.weight", "module.model.layers.0.module.self_attn.q_proj.weight",
      "module.model.layers.1.module.mlp.down_proj.weight", "module.model.norm.weight", "module.lm_head.weight"};
  CHECK(names_in(find_state_names(modules, nullptr)) == kModel);
}

TEST_CASE("Names of no family are kept, and so is what lies beside the model under its prefix") {
  const std::vector<std::string> strange{"a.b", "a.c", "optim.state.a.b.exp_avg"};
  const StateNames found = find_state_names(strange, nullptr);
  CHECK(names_in(found) == std::vector<std::string>{"a.b", "a.c", ""});
  CHECK_FALSE(found.fits);
  CHECK(state_names_note(found).empty());
  std::vector<std::string> entries = with_prefix("model.");
  entries.insert(entries.end(), {"model.extra.scale", "other.weight"});
  const StateNames beside = find_state_names(entries, nullptr);
  CHECK(beside.entries[kModel.size()].name == "extra.scale");
  CHECK(beside.entries[kModel.size() + 1].name.empty());
}

TEST_CASE("torchtitan's names become the model's, with their order, and without a family they stay") {
  const std::vector<std::string> titan{"tok_embeddings.weight",
                                       "layers.0.attention.wq.weight",
                                       "layers.11.attention.qkv_linear.wk.weight",
                                       "layers.0.attention.q_norm.weight",
                                       "layers.1.moe.experts.w2",
                                       "layers.1.moe.routed_experts.inner_experts.w1_EFD",
                                       "layers.1.moe.expert_bias",
                                       "layers.1.moe.router.gate.weight",
                                       "norm.weight",
                                       "output.weight",
                                       "optimizer.state.output.weight.exp_avg"};
  const auto family = builtin_family("qwen3_moe");
  const StateNames found = find_state_names(titan, family.get());
  CHECK(found.program == "torchtitan");
  CHECK(names_in(found) ==
        std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                 "model.layers.11.self_attn.k_proj.weight", "model.layers.0.self_attn.q_norm.weight",
                                 "model.layers.1.mlp.experts.*.down_proj.weight",
                                 "model.layers.1.mlp.experts.*.gate_proj.weight", "", "model.layers.1.mlp.gate.weight",
                                 "model.norm.weight", "lm_head.weight", ""});
  CHECK(found.entries[1].packed == nullptr);
  REQUIRE(found.entries[4].packed != nullptr);
  CHECK(found.entries[4].packed->tensors({2}) ==
        std::vector<std::string>{"model.layers.1.mlp.experts.0.down_proj.weight",
                                 "model.layers.1.mlp.experts.1.down_proj.weight"});
  CHECK(found.entries[7].packed == nullptr);
  CHECK(state_names_note(found) == "replaced the names of torchtitan by the model's own");

  const StateNames llama = find_state_names(with_prefix("model.", titan), builtin_family("llama").get());
  CHECK(llama.prefix == "model.");
  CHECK(llama.entries[1].name == "model.layers.0.self_attn.q_proj.weight");
  REQUIRE(llama.entries[1].packed != nullptr);
  CHECK(llama.entries[1].packed->tensors({}) == std::vector<std::string>{llama.entries[1].name});
  CHECK(llama.entries[1].packed->rule->sizes.count("pair") == 1);
  CHECK(llama.entries[2].packed != nullptr);
  CHECK(llama.entries[4].name == "layers.1.moe.experts.w2");  // which no Llama has

  const StateNames unknown = find_state_names(titan, nullptr);
  CHECK(unknown.program == "torchtitan");
  CHECK_FALSE(unknown.are_replaced);
  CHECK(unknown.entries[1].name == titan[1]);
  CHECK(state_names_note(unknown) ==
        "kept the names of torchtitan: with a config.json (`config`), they are replaced by the model's own");
}

TEST_CASE("Names that are another program's by chance are a model's own") {
  const std::vector<std::string> entries{"norm.weight", "output.weight", "blocks.0.w", "blocks.1.w", "blocks.2.w"};
  const StateNames found = find_state_names(entries, nullptr);
  CHECK(found.program.empty());
  CHECK(names_in(found) == entries);
}

TEST_CASE("A prefix that the head lacks, or other words in place of the base model's, are taken off the body") {
  const auto family = builtin_family("qwen3");
  const std::vector<std::string> body(kModel.begin(), kModel.end() - 1);
  const auto base = [&] {
    std::vector<std::string> names;
    for (const std::string& name : body) names.push_back(name.substr(6));
    return names;
  }();
  struct Row {
    std::string prefix;  // before the body
    bool is_base;        // without its own "model."
    std::string head;    // before the head
    const char* note;
  };
  for (const Row& row : {Row{"model.", false, "", "read without the prefix model."},
                         Row{"a.model.", false, "a.", "read without the prefix a.model."},
                         Row{"foo.bar.", true, "", "read with the prefix model. instead of foo.bar."},
                         Row{"model.language_model.", true, "", "instead of model.language_model."},
                         Row{"language_model.", false, "language_model.", "read without the prefix language_model."}})
    for (const char* head : {"lm_head.weight", "score.weight", "lm_head.bias"}) {
      CAPTURE(row.prefix, head);
      std::vector<std::string> entries = with_prefix(row.prefix, row.is_base ? base : body), names = body;
      entries.push_back(row.head + head);
      names.emplace_back(head);
      const StateNames found = find_state_names(entries, family.get());
      CHECK(names_in(found) == names);
      CHECK_THAT(state_names_note(found), Says(row.note));
    }
}

TEST_CASE("Long prefixes are compared once with each name, however many words they have") {
  std::string prefix;
  for (int word = 0; word < 10'000; ++word) prefix += "a.";
  const auto family = builtin_family("qwen3");
  std::vector<std::string> entries = with_prefix(prefix, {kModel.begin(), kModel.end() - 1});
  const std::size_t body = entries.size();
  for (int other = 0; other < 100; ++other)
    entries.push_back(prefix.substr(0, prefix.size() / 2) + std::to_string(other) + ".weight");
  entries.push_back(prefix.substr(0, prefix.size() / 2) + "lm_head.weight");
  const StateNames found = find_state_names(entries, family.get());
  CHECK(found.entries.back().name == "lm_head.weight");
  CHECK(found.entries[body - 1].name == "model.norm.weight");
}

TEST_CASE("A parameter behind an unrelated prefix is refused, unless it belongs to a copy of the model") {
  const auto family = builtin_family("qwen3");
  std::vector<std::string> entries = with_prefix("a.", {kModel.begin(), kModel.end() - 1});
  entries.emplace_back("b.lm_head.weight");
  check_refused([&] { find_state_names(entries, family.get()); },
                {.tensor = "b.lm_head.weight", .says = "may be the model's lm_head.weight", .hint = "`rename`"});
  CHECK(names_in(names_as_stored(entries)) == entries);
  entries.emplace_back("b.model.norm.weight");
  const StateNames found = find_state_names(entries, family.get());
  CHECK(found.entries.back().name.empty());
  CHECK(found.entries[entries.size() - 2].name.empty());
}

TEST_CASE("Words that are repeated before the language model of a larger one are read once") {
  const std::vector<std::string> model{"model.language_model.layers.0.self_attn.q_proj.weight",
                                       "model.language_model.norm.weight", "model.visual.blocks.0.attn.proj.weight",
                                       "lm_head.weight"};
  const auto family = builtin_family("qwen3");
  std::vector<std::string> entries = model;
  for (std::string& entry : entries)
    if (entry.starts_with("model.language_model.")) entry.insert(6, "language_model.language_model.");
  const StateNames found = find_state_names(entries, {family.get(), true});
  CHECK(names_in(found) == model);
  CHECK(state_names_note(found) == "names of tensors are read without repetitions of language_model");
  for (std::string& entry : entries)
    if (entry.starts_with("model.")) entry.insert(0, "model.");
  CHECK(names_in(find_state_names(entries, {family.get(), true})) == model);
}

TEST_CASE("Two entries for one name are refused") {
  std::vector<std::string> entries = with_prefix("model.");
  entries.push_back("model._orig_mod.lm_head.weight");
  check_refused([&] { find_state_names(entries, nullptr); },
                {.tensor = "model._orig_mod.lm_head.weight",
                 .says = "gets the name lm_head.weight in the model, which model.lm_head.weight already has"});
}

}  // namespace
}  // namespace reshard::test
