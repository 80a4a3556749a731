// Rank files without metadata, of a model that only the plan in config.json describes: values and the sizes in
// config.json are the only evidence of a wrong plan.

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A tensor of the model, and along which dim the ranks have split it.
struct TrueSplit {
  std::string name;
  Dims shape;
  std::optional<std::size_t> dim = {};
};

/// A small model: its tensors as ranks store them, and its config.json with the plan.
struct Newcomer {
  std::vector<TrueSplit> tensors;
  json config;

  Newcomer() {
    config = json::parse(R"({"model_type": "newcomer", "vocab_size": 40, "hidden_size": 12, "intermediate_size": 20,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 2,
      "_tp_plan": {"lm_head": "colwise_rep"},
      "base_model_tp_plan": {"embed_tokens": "embedding_rowwise",
        "layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}})");
    tensors = {
        {"model.embed_tokens.weight", {40, 12}, 0}, {"model.norm.weight", {12}}, {"lm_head.weight", {40, 12}, 0}};
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      const std::vector<TrueSplit> own{
          {layer + "self_attn.q_proj.weight", {16, 12}, 0}, {layer + "self_attn.q_proj.bias", {16}, 0},
          {layer + "self_attn.k_proj.weight", {8, 12}, 0},  {layer + "self_attn.v_proj.weight", {8, 12}, 0},
          {layer + "self_attn.o_proj.weight", {12, 16}, 1}, {layer + "mlp.gate_proj.weight", {20, 12}, 0},
          {layer + "mlp.up_proj.weight", {20, 12}, 0},      {layer + "mlp.down_proj.weight", {12, 20}, 1},
          {layer + "input_layernorm.weight", {12}}};
      tensors.insert(tensors.end(), own.begin(), own.end());
    }
  }

  /// Has every rank store all of a tensor.
  void keep_whole(const std::string& part_of_name) {
    for (TrueSplit& one : tensors)
      if (one.name.find(part_of_name) != std::string::npos) one.dim.reset();
  }
  void forget(const std::vector<const char*>& keys) {
    for (const char* key : keys) config.erase(key);
  }
  /// Other names for modules, in plan and tensors.
  void rename(const std::string& from, const std::string& to) {
    const auto renamed = [&](std::string name) {
      const std::size_t at = name.find(from);
      return at == name.npos ? name : name.replace(at, from.size(), to);
    };
    for (TrueSplit& one : tensors) one.name = renamed(one.name);
    json plan = json::object();
    for (const auto& [key, word] : config["base_model_tp_plan"].items()) plan[renamed(key)] = word;
    config["base_model_tp_plan"] = plan;
  }
};

/// How a rank's file is called and written.
struct Form {
  const char* name;
  const char* file;  // with the rank
  void (*write)(const fs::path&, const TensorMap&);
};
constexpr Form kForms[] = {
    {"ranks", "tensor_parallel_shards/tp_rank_{:02}_pp_rank_00/model.safetensors", write_safetensors},
    {"ranks, torch", "tensor_parallel_shards/tp_rank_{:02}_pp_rank_00/checkpoint.pt", write_torch},
    {"nxd", "model/dp_rank_00_tp_rank_{:02}_pp_rank_00.pt", write_torch},
    {"presharded", "weights/tp{}_sharded_checkpoint.safetensors", write_safetensors}};

/// Writes the first `written` of `tp` ranks. \returns the whole tensors.
TensorMap write_ranks(const fs::path& directory, const Newcomer& model, const Form& form, std::uint32_t tp = 2,
                      std::uint32_t written = 2, const std::function<void(TensorMap&)>& change = {}) {
  Random random(7);
  TensorMap whole;
  for (const TrueSplit& one : model.tensors) whole[one.name] = random_tensor(random, DType::kBF16, one.shape);
  if (change) change(whole);
  for (std::uint32_t rank = 0; rank < written; ++rank) {
    TensorMap held;
    for (const TrueSplit& one : model.tensors) held[one.name] = rank_slice(whole.at(one.name), one.dim, tp, rank);
    const fs::path file = directory / fmt::format(fmt::runtime(form.file), rank);
    fs::create_directories(file.parent_path());
    form.write(file, held);
  }
  write_file(directory / "config.json", model.config.dump());
  return whole;
}

Error refusal(const fs::path& directory, Replicas replicas = Replicas::kDrift, bool check_replicas = true) {
  RunOptions options = unsynced();
  options.replicas = replicas;
  const fs::path output = directory.parent_path() / "whole";
  Error error = error_of(
      [&] { consolidate(consolidate_request(directory, output, {.check_replicas = check_replicas}), options); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(output));
  return error;
}

TensorMap whole_ranks(const fs::path& directory) {
  return consolidated(directory, directory.parent_path() / "whole");
}

template <typename Action>
void in_each_form(Action&& action) {
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.name) {
      const TempDir temp;
      action(temp / "ranks", form);
    }
  }
}

TEST_CASE("Ranks that fit the plan are consolidated, with sizes in config.json or without, padded or tied") {
  in_each_form([](const fs::path& directory, const Form& form) {
    Newcomer model;
    const TensorMap whole = write_ranks(directory, model, form);
    CHECK((whole_ranks(directory) == whole));
    model.config["vocab_size"] = 37;  // padded
    write_ranks(directory, model, form);
    CHECK((whole_ranks(directory) == whole));
    json plans;
    for (const char* key : {"model_type", "base_model_tp_plan", "_tp_plan"}) plans[key] = model.config[key];
    model.config = plans;
    write_ranks(directory, model, form);
    CHECK((whole_ranks(directory) == whole));
  });
}

TEST_CASE("A plan that contradicts the ranks is an error that names the tensor") {
  struct Row {
    std::string title;
    std::function<void(Newcomer&)> change;
    Refusal refusal;
    Replicas replicas = Replicas::kDrift;
  };
  std::vector<Row> rows;
  const std::string layer = "model.layers.0.";
  for (const std::string& name :
       {std::string("model.embed_tokens.weight"), std::string("lm_head.weight"), layer + "self_attn.o_proj.weight",
        layer + "self_attn.q_proj.bias", layer + "mlp.gate_proj.weight"})
    rows.push_back(
        {"a whole " + name,
         [name](Newcomer& model) {
           model.keep_whole(name);
           model.forget({"vocab_size", "hidden_size", "intermediate_size"});
         },
         {.tensor = name,
          .says = "on tensor-parallel ranks 0 and 1, but according to the plan in config.json they are parts of",
          .hint = "every rank has the whole tensor"},
         Replicas::kFirst});
  for (const auto& [module, word] : {std::pair("mlp.down_proj", "colwise"),
                                     {"mlp.up_proj", "rowwise"},
                                     {"self_attn.q_proj", "rowwise"},
                                     {"self_attn.o_proj", "colwise"}})
    rows.push_back({std::string(module) + " " + word,
                    [module = module, word = word](Newcomer& model) {
                      model.config["base_model_tp_plan"][std::string("layers.*.") + module] = word;
                    },
                    {.tensor = layer + module + ".weight",
                     .says = "which the plan in config.json joins to",
                     .hint = "the plan splits the wrong dim"}});
  rows.push_back({"embed_tokens embedding_colwise",
                  [](Newcomer& model) { model.config["base_model_tp_plan"]["embed_tokens"] = "embedding_colwise"; },
                  {.tensor = "model.embed_tokens.weight",
                   .says = "which the plan in config.json joins to",
                   .hint = "the plan splits the wrong dim"}});
  rows.push_back(
      {"modules of any name, by the hidden state",
       [](Newcomer& model) {
         model.forget({"intermediate_size"});
         model.rename("mlp.down_proj", "ff.out");
         model.rename("mlp.up_proj", "ff.in");
         model.config["base_model_tp_plan"]["layers.*.ff.out"] = "colwise";
       },
       {.tensor = layer + "ff.out.weight",
        .says = "a rank has [12, 10] of it, which the plan in config.json joins to [24, 10], but the sizes in "
                "config.json are those of [12, 20]",
        .hint = "the plan splits the wrong dim"}});
  rows.push_back({"no plan for the head, but vocab_size",
                  [](Newcomer& model) { model.forget({"_tp_plan"}); },
                  {.tensor = "lm_head.weight",
                   .says = "each of the 2 ranks has 20 rows of it, and the plan in config.json does not split them, "
                           "but config.json says vocab_size 40",
                   .hint = "the plan lacks it"},
                  Replicas::kFirst});
  for (const Row& row : rows) DYNAMIC_SECTION(row.title) {
      in_each_form([&](const fs::path& directory, const Form& form) {
        Newcomer model;
        row.change(model);
        write_ranks(directory, model, form);
        check_error(refusal(directory, row.replicas), row.refusal);
      });
    }
}

TEST_CASE("Replicated key and value heads are not stacked, in whichever order they are") {
  for (const bool tiled : {false, true}) DYNAMIC_SECTION((tiled ? "tiled" : "adjacent")) {
      const TempDir temp;
      Newcomer model;
      model.config.erase("num_key_value_heads");
      write_ranks(temp / "ranks", model, kForms[0], 4, 4);
      const auto file = [&](int rank) { return temp / "ranks" / fmt::format(fmt::runtime(kForms[0].file), rank); };
      for (const auto& [from, to] : {std::pair(0, tiled ? 2 : 1), std::pair(tiled ? 1 : 2, 3)}) {
        const TensorMap first = read_tensors(file(from));
        change_tensors(file(to), [&](TensorMap& second) {
          for (auto& [name, tensor] : second)
            if (name.find("k_proj") != name.npos || name.find("v_proj") != name.npos) tensor = first.at(name);
        });
      }
      CHECK_THAT(refusal(temp / "ranks").what(), Says(tiled ? "ranks 0 and 2" : "ranks 0 and 1"));
    }
}

TEST_CASE("Pieces that are made of equal slices show nothing") {
  in_each_form([](const fs::path& directory, const Form& form) {
    const TensorMap whole = write_ranks(directory, Newcomer(), form, 2, 2, [](TensorMap& tensors) {
      std::string& bias = tensors.at("model.layers.0.self_attn.q_proj.bias").bytes;
      bias.assign(bias.size(), '\0');
      std::string& rows = tensors.at("model.layers.0.mlp.up_proj.weight").bytes;  // each is the first one
      for (std::size_t i = 24; i < rows.size(); ++i) rows[i] = rows[i - 24];
      std::string& columns = tensors.at("model.layers.1.mlp.down_proj.weight").bytes;  // each row has one number
      for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = columns[i / 40 * 40 + i % 2];
    });
    CHECK((whole_ranks(directory) == whole));
  });
}

TEST_CASE("Each rank's tensor is not taken for the whole one because the plan does not name it") {
  in_each_form([](const fs::path& directory, const Form& form) {
    Newcomer model;
    model.forget({"_tp_plan", "vocab_size"});
    write_ranks(directory, model, form);
    for (const Replicas replicas : {Replicas::kDrift, Replicas::kFirst})
      for (const bool check : {true, false})
        check_error(refusal(directory, replicas, check),
                    {.tensor = "lm_head.weight",
                     .hint = {"the plan in config.json does not name it", "`replicas` first has no effect"}});
    model.config["_tp_plan"] = {{"lm_head", "replicate"}};  // the plan confirms it
    write_ranks(directory, model, form);
    RunOptions options = unsynced();
    options.replicas = Replicas::kFirst;
    const auto request = consolidate_request(directory, directory.parent_path() / "whole");
    CHECK(consolidate(request, options).divergent.size() == 1);
  });
}

TEST_CASE("Last ranks that are missing are the first guess where sizes are too small") {
  for (const bool vocabulary : {true, false}) DYNAMIC_SECTION("vocab_size " << vocabulary) {
      in_each_form([&](const fs::path& directory, const Form& form) {
        for (const std::uint32_t written : {1u, 2u, 3u}) {
          Newcomer model;
          if (!vocabulary) model.forget({"vocab_size"});
          write_ranks(directory, model, form, 4, written);
          check_error(refusal(directory),
                      {.says = written == 1 ? "the one rank has" : fmt::format("the {} ranks together have", written),
                       .hint = "the files of the last ranks are missing: with 4 ranks the sizes would fit"});
          fs::remove_all(directory);
        }
      });
    }
}

TEST_CASE("Sizes that the ranks do not explain are left alone") {
  in_each_form([](const fs::path& directory, const Form& form) {
    Newcomer model;
    for (TrueSplit& one : model.tensors)  // gated queries, and an MLP of twice the size
      if (one.name.ends_with("q_proj.weight") || one.name.ends_with("gate_proj.weight")) one.shape[0] *= 2;
    model.config["draft_vocab_size"] = 24;
    for (TrueSplit& one : model.tensors)
      if (one.name == "lm_head.weight") one.shape[0] = 24;
    model.config["base_model_tp_plan"].erase("layers.*.self_attn.q_proj");
    model.keep_whole("q_proj");
    const TensorMap whole = write_ranks(directory, model, form);
    CHECK((whole_ranks(directory) == whole));
  });
}

TEST_CASE("NxD Inference's names of a model that only a plan describes are refused") {
  const TempDir temp;
  Newcomer model;
  for (TrueSplit& one : model.tensors) {
    if (one.name.starts_with("model.")) one.name.erase(0, 6);
    const std::size_t at = one.name.find("self_attn.q_proj");
    if (at != one.name.npos) one.name.replace(at, 16, "self_attn.qkv_proj.q_proj");
  }
  write_ranks(temp / "ranks", model, kForms[3]);
  check_refused([&] { whole_ranks(temp / "ranks"); },
                {.kind = ErrorKind::kUnsupported, .says = "NxD Inference's names for newcomer are unknown"});
}

TEST_CASE("Plain tensors that differ between FSDP's ranks are not taken for whole ones") {
  const TempDir temp;
  Newcomer model;
  const Form form{"fsdp-ranks", "model_world_size_2_rank_{}.pt", write_torch};
  write_ranks(temp / "ranks", model, form);
  check_error(refusal(temp / "ranks", Replicas::kFirst), {.says = "20 rows of it, but config.json says vocab_size 40"});
  model.forget({"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"});
  write_ranks(temp / "ranks", model, form);
  for (const bool check : {true, false})
    check_error(refusal(temp / "ranks", Replicas::kFirst, check),
                {.hint = "a plain tensor does not record its position"});
}

/// The ranks of an architecture of Transformers under an unknown model_type: its plan alone says what it is.
/// \returns false if the architecture has no plan, or does not go over two ranks by it.
bool write_planned_ranks(const Architecture& of, const TempDir& temp, TensorMap& tensors) {
  const auto plan = of.facts.find("base_model_tp_plan");
  if (plan == of.facts.end() || !plan->is_object() || plan->empty()) return false;
  tensors = write_architecture(of, temp / "model");
  json config = json::parse(read_file(temp / "model/config.json"));
  config["model_type"] = "newcomer";
  if (config.contains("text_config")) config["text_config"]["model_type"] = "newcomer_text";
  config["base_model_tp_plan"] = *plan;
  if (const auto head = of.facts.find("tp_plan"); head != of.facts.end() && head->is_object())
    config["_tp_plan"] = *head;
  config.erase("quantization_config");
  write_file(temp / "model/config.json", config.dump());
  try {
    shard(shard_request(temp / "model", temp / "out", 2));
  } catch (const Error& error) {
    CAPTURE(of.name, error.what());
    CHECK((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kBadInput));
    return false;
  }
  fs::remove(temp / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
  for (int rank : {0, 1})  // without what they record
    change_tensors(temp / "out" / fmt::format(fmt::runtime(kForms[0].file), rank), [](TensorMap&) {});
  return true;
}

TEST_CASE("Ranks of every architecture that has a plan are read by it, and a lost last rank is missed") {
  std::size_t read = 0, missed = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    const TempDir temp;
    TensorMap tensors;
    if (!write_planned_ranks(architecture(name), temp, tensors)) continue;
    INFO(name);
    ++read;
    for (const auto& [tensor, data] : whole_ranks(temp / "out")) {
      CAPTURE(tensor);
      REQUIRE(tensors.count(tensor) == 1);
      CHECK((tensors.at(tensor) == data));
    }
    fs::remove_all(temp / "out/tensor_parallel_shards/tp_rank_01_pp_rank_00");
    try {
      whole_ranks(temp / "out");
      WARN("half a model of " << name << " goes unnoticed");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kBadInput);
      ++missed;
    }
  }
  CHECK(read > (has_all_seeds() ? 60 : 15));
  CHECK(missed == read);
}

}  // namespace
}  // namespace reshard::test
