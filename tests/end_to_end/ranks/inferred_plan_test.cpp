// Rank files without metadata, of a model that only the plan in config.json describes: values and the sizes in
// config.json are the only evidence of a wrong plan.

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "reshard/plan/job/job.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A tensor of the model, and along which dim the ranks have split it; -1 for none.
struct TrueSplit {
  std::string name;
  Dims shape;
  int dim = -1;
};

/// A small model: its tensors as ranks store them, and its config.json with the plan.
struct Newcomer {
  std::vector<TrueSplit> tensors;
  json config;

  Newcomer() {
    config = {{"model_type", "newcomer"},
              {"vocab_size", 40},
              {"hidden_size", 12},
              {"intermediate_size", 20},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 4},
              {"num_hidden_layers", 2},
              {"_tp_plan", {{"lm_head", "colwise_rep"}}}};
    json& plan = config["base_model_tp_plan"];
    plan["embed_tokens"] = "embedding_rowwise";
    for (const char* module :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
      plan[std::string("layers.*.") + module] = "colwise";
    for (const char* module : {"self_attn.o_proj", "mlp.down_proj"})
      plan[std::string("layers.*.") + module] = "rowwise";
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

  void set_dim(const std::string& part_of_name, int dim) {
    for (TrueSplit& one : tensors)
      if (one.name.find(part_of_name) != std::string::npos) one.dim = dim;
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

TensorData part_of(const TensorData& whole, int dim, std::uint64_t tp, std::uint64_t rank) {
  if (dim < 0) return whole;
  const auto d = static_cast<std::size_t>(dim);
  TensorData part{whole.dtype, whole.shape, {}};
  part.shape[d] /= tp;
  std::uint64_t outer = 1, inner = bits(whole.dtype) / 8;
  for (std::size_t i = 0; i < d; ++i) outer *= whole.shape[i];
  for (std::size_t i = d + 1; i < whole.shape.size(); ++i) inner *= whole.shape[i];
  const std::uint64_t run = part.shape[d] * inner;
  for (std::uint64_t o = 0; o < outer; ++o) part.bytes += whole.bytes.substr((o * tp + rank) * run, run);
  return part;
}

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
    for (const TrueSplit& one : model.tensors) held[one.name] = part_of(whole.at(one.name), one.dim, tp, rank);
    const fs::path file = directory / fmt::format(fmt::runtime(form.file), rank);
    fs::create_directories(file.parent_path());
    form.write(file, held);
  }
  write_file(directory / "config.json", model.config.dump());
  return whole;
}

Error refusal(const fs::path& directory, Replicas replicas = Replicas::kDrift, bool check_replicas = true) {
  ConsolidateRequest request;
  request.source.path = directory;
  request.output_directory = directory.parent_path() / "whole";
  request.check_replicas = check_replicas;
  RunOptions options = unsynced();
  options.replicas = replicas;
  const Error error = error_of([&] { consolidate(request, options); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(directory.parent_path() / "whole"));
  return error;
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
    CHECK((consolidated(directory, directory.parent_path() / "whole") == whole));
    model.config["vocab_size"] = 37;  // padded
    write_ranks(directory, model, form);
    CHECK((consolidated(directory, directory.parent_path() / "whole") == whole));
    json text = model.config;
    for (const char* key : {"model_type", "base_model_tp_plan", "_tp_plan"}) text.erase(key);
    for (const auto& [key, value] : text.items()) model.config.erase(key);
    write_ranks(directory, model, form);
    CHECK((consolidated(directory, directory.parent_path() / "whole") == whole));
  });
}

TEST_CASE("A tensor that is whole on every rank is not stacked because the plan splits it") {
  for (const char* name : {"embed_tokens.weight", "lm_head.weight", "o_proj.weight", "q_proj.bias", "gate_proj.weight"})
    DYNAMIC_SECTION(name) {
      in_each_form([&](const fs::path& directory, const Form& form) {
        Newcomer model;
        model.set_dim(name, -1);
        for (const char* key : {"vocab_size", "hidden_size", "intermediate_size"}) model.config.erase(key);
        write_ranks(directory, model, form);
        const Error error = refusal(directory, Replicas::kFirst);
        CHECK_THAT(error.tensor(), Says(name));
        CHECK_THAT(error.what(), Says("on tensor-parallel ranks 0 and 1, but the plan in config.json takes the two for "
                                      "parts of"));
        CHECK_THAT(error.hint(), Says("every rank has all of it"));
      });
    }
}

TEST_CASE("Replicated key and value heads are not stacked, in whichever order they are") {
  for (const bool tiled : {false, true}) DYNAMIC_SECTION((tiled ? "tiled" : "adjacent")) {
      const TempDir temp;
      Newcomer model;
      model.config.erase("num_key_value_heads");
      write_ranks(temp / "ranks", model, kForms[0], 4, 4);
      const fs::path folder = temp / "ranks/tensor_parallel_shards";
      const auto file = [&](int rank) {
        return folder / fmt::format("tp_rank_{:02}_pp_rank_00/model.safetensors", rank);
      };
      for (const auto& [from, to] : {std::pair(0, tiled ? 2 : 1), std::pair(tiled ? 1 : 2, 3)}) {
        const TensorMap first = read_tensors(file(from));
        TensorMap second = read_tensors(file(to));
        for (auto& [name, tensor] : second)
          if (name.find("k_proj") != name.npos || name.find("v_proj") != name.npos) tensor = first.at(name);
        write_safetensors(file(to), second);
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
    CHECK((consolidated(directory, directory.parent_path() / "whole") == whole));
  });
}

TEST_CASE("Each rank's tensor is not taken for the whole one because the plan does not name it") {
  in_each_form([](const fs::path& directory, const Form& form) {
    Newcomer model;
    model.config.erase("_tp_plan");
    write_ranks(directory, model, form);
    const Error size = refusal(directory, Replicas::kFirst);
    CHECK(size.tensor() == "lm_head.weight");
    CHECK_THAT(size.what(), Says("each of the 2 ranks has 20 rows of it, and the plan in config.json does not split "
                                 "them, but config.json says vocab_size 40"));
    CHECK_THAT(size.hint(), Says("the plan lacks it"));

    model.config.erase("vocab_size");
    write_ranks(directory, model, form);
    for (const Replicas replicas : {Replicas::kDrift, Replicas::kFirst})
      for (const bool check : {true, false})
        check_error(refusal(directory, replicas, check),
                    {.tensor = "lm_head.weight",
                     .hint = {"the plan in config.json does not name it", "`replicas` first has no effect"}});
    model.config["_tp_plan"] = {{"lm_head", "replicate"}};  // the plan confirms it
    write_ranks(directory, model, form);
    ConsolidateRequest request;
    request.source.path = directory;
    request.output_directory = directory.parent_path() / "whole";
    RunOptions options = unsynced();
    options.replicas = Replicas::kFirst;
    CHECK(consolidate(request, options).divergent.size() == 1);
  });
}

TEST_CASE("A wrong dim in the plan is an error where config.json has the sizes") {
  struct Case {
    const char *module, *word;
    std::vector<const char*> unknown;  // keys that config.json lacks
  };
  const Case cases[] = {{"layers.*.mlp.down_proj", "colwise", {}},
                        {"layers.*.mlp.up_proj", "rowwise", {}},
                        {"layers.*.mlp.down_proj", "colwise", {"intermediate_size"}},
                        {"layers.*.self_attn.q_proj", "rowwise", {}},
                        {"layers.*.self_attn.o_proj", "colwise", {}},
                        {"embed_tokens", "embedding_colwise", {}}};
  for (const Case& one : cases) DYNAMIC_SECTION(one.module << " " << one.unknown.size()) {
      in_each_form([&](const fs::path& directory, const Form& form) {
        Newcomer model;
        model.config["base_model_tp_plan"][one.module] = one.word;
        for (const char* key : one.unknown) model.config.erase(key);
        write_ranks(directory, model, form);
        const Error error = refusal(directory);
        const std::string module = one.module;
        CHECK_THAT(error.tensor(), Says(module.substr(module.rfind('.') + 1)));
        CHECK_THAT(error.what(), Says("which the plan in config.json joins to"));
        CHECK_THAT(error.hint(), Says("the plan splits the wrong dim"));
      });
    }
}

TEST_CASE("A wrong dim shows in modules of any name, by the hidden state") {
  in_each_form([](const fs::path& directory, const Form& form) {
    Newcomer model;
    model.config.erase("intermediate_size");
    model.rename("mlp.down_proj", "ff.out");
    model.rename("mlp.up_proj", "ff.in");
    model.config["base_model_tp_plan"]["layers.*.ff.out"] = "colwise";
    write_ranks(directory, model, form);
    const Error error = refusal(directory);
    CHECK_THAT(error.tensor(), Says("ff.out.weight"));
    CHECK_THAT(error.what(), Says("a rank has [12, 10] of it, which the plan in config.json joins to [24, 10], but the "
                                  "sizes in config.json are those of [12, 20]"));
  });
}

TEST_CASE("Last ranks that are missing are the first guess where sizes are too small") {
  for (const bool vocabulary : {true, false}) DYNAMIC_SECTION("vocab_size " << vocabulary) {
      in_each_form([&](const fs::path& directory, const Form& form) {
        for (const std::uint32_t written : {1u, 2u, 3u}) {
          Newcomer model;
          if (!vocabulary) model.config.erase("vocab_size");
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
    model.set_dim("q_proj", -1);
    const TensorMap whole = write_ranks(directory, model, form);
    CHECK((consolidated(directory, directory.parent_path() / "whole") == whole));
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
  check_refused([&] { consolidated(temp / "ranks", temp / "whole"); },
                {.kind = ErrorKind::kUnsupported, .says = "NxD Inference's names for newcomer are unknown"});
}

TEST_CASE("Plain tensors that differ between FSDP's ranks are not taken for whole ones") {
  const TempDir temp;
  Newcomer model;
  const Form form{"fsdp-ranks", "model_world_size_2_rank_{}.pt", write_torch};
  write_ranks(temp / "ranks", model, form);
  check_error(refusal(temp / "ranks", Replicas::kFirst), {.says = "20 rows of it, but config.json says vocab_size 40"});
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"})
    model.config.erase(key);
  write_ranks(temp / "ranks", model, form);
  for (const bool check : {true, false})
    check_error(refusal(temp / "ranks", Replicas::kFirst, check),
                {.hint = "a plain tensor does not record which part of the whole it is"});
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
    ShardRequest request = shard_request(temp / "model", temp / "out", 2);
    request.target.layout = layout("ranks");
    request.target.format = Format::kSafetensors;
    shard(request);
  } catch (const Error& error) {
    CAPTURE(of.name, error.what());
    CHECK((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kBadInput));
    return false;
  }
  fs::remove(temp / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
  for (const char* rank : {"tp_rank_00_pp_rank_00", "tp_rank_01_pp_rank_00"}) {
    const fs::path file = temp / "out/tensor_parallel_shards" / rank / "model.safetensors";
    write_safetensors(file, read_tensors(file));  // without what it records
  }
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
    const TensorMap whole = consolidated(temp / "out", temp / "whole");
    for (const auto& [tensor, data] : whole) {
      CAPTURE(tensor);
      REQUIRE(tensors.count(tensor) == 1);
      CHECK((tensors.at(tensor) == data));
    }
    fs::remove_all(temp / "out/tensor_parallel_shards/tp_rank_01_pp_rank_00");
    fs::remove_all(temp / "whole");
    try {
      consolidated(temp / "out", temp / "whole");
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
