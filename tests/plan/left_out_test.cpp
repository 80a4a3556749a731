// What of a model's directory does not come along is named: tensors that config.json asks for, files of weights, a
// tokenizer.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "reshard/plan/plan.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/older_folders.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A small model in memory, in /m, of as many files of weights.
struct LackingModel {
  explicit LackingModel(std::size_t count = 1, const std::string& lacks = {}) {
    Random random(8);
    TensorMap tensors = random_tensors({}, random);
    std::erase_if(tensors, [&](const auto& one) { return !lacks.empty() && one.first.find(lacks) != one.first.npos; });
    write_model(files, "/m", {}, tensors, count);
  }
  Request request(const std::string& to, const fs::path& config = {}) const {
    RequestFields fields{.layout = to, .config = config};
    if (to == "ranks" || to == "nxd") fields.tp = 2;
    return convert_request("/m", "/out", fields);
  }
  /// The notes of the plan that contain `part`.
  std::vector<std::string> notes(const Request& request, const std::string& part) {
    std::vector<std::string> notes = plan_convert(files, request)->notes.texts();
    std::erase_if(notes, [&](const std::string& note) { return note.find(part) == note.npos; });
    return notes;
  }
  MemoryFiles files;
};

using Sentences = std::vector<std::string>;
constexpr const char* kAsksFor = "config.json asks for";

bool copies(const Job& job, const fs::path& source, const fs::path& path) {
  return std::any_of(job.copied_files.begin(), job.copied_files.end(),
                     [&](const CopiedFile& file) { return file.source == source && file.path == path; });
}

TEST_CASE("A tensor that config.json asks for and that is missing is an error in layouts of whole tensors") {
  for (const char* to : {"hf", "dcp"}) {
    CAPTURE(to);
    LackingModel model(1, "mlp.up_proj");
    Request request = model.request(to);
    check_refused([&] { plan_convert(model.files, request); },
                  {.path = "/m",
                   .says = "2 tensors that config.json asks for are missing: "
                           "model.layers.0.mlp.up_proj.weight, model.layers.1.mlp.up_proj.weight",
                   .hint = "`allow-missing`"});
    request.allow_missing = true;
    CHECK(model.notes(request, "model.layers.1.mlp.up_proj.weight").size() == 1);
  }
}

TEST_CASE("A layout that needs every tensor does not take the option that allows missing ones") {
  LackingModel model(1, "layers.1.mlp.up_proj");
  Request request = model.request("ranks");
  request.allow_missing = true;
  check_refused([&] { plan_convert(model.files, request); },
                {.kind = ErrorKind::kUsage,
                 .says = "`allow-missing`: layout ranks needs every tensor of the model",
                 .hint = "hf, dcp"});
}

TEST_CASE("Tensors that rules drop or rename away are counted and named, where config.json asks for them") {
  LackingModel model;
  const std::string eight =
      "`drop` or `keep` leaves out 8 tensors that config.json asks for: model.layers.0.self_attn.q_proj.weight, "
      "model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.v_proj.weight, "
      "model.layers.0.self_attn.o_proj.weight, model.layers.1.self_attn.q_proj.weight, "
      "model.layers.1.self_attn.k_proj.weight, … (8 in all)";
  struct Row {
    std::vector<const char*> rename, drop, keep;
    Sentences notes;
  };
  const Row rows[] = {
      {{}, {}, {}, {}},
      {{},
       {"norm"},
       {},
       {"`drop` or `keep` leaves out 5 tensors that config.json asks for: "
        "model.layers.0.input_layernorm.weight, model.layers.0.post_attention_layernorm.weight, "
        "model.layers.1.input_layernorm.weight, model.layers.1.post_attention_layernorm.weight, model.norm.weight"}},
      {{},
       {},
       {"lm_head|layers|embed_tokens"},
       {"`drop` or `keep` leaves out 1 tensor that config.json asks for: model.norm.weight"}},
      {{}, {"self_attn"}, {}, {eight}},
      // Names are renamed before they are compared with the model.
      {{"self_attn=other"}, {"self_attn"}, {}, {eight}},
      {{"self_attn=attention"}, {}, {}, {"`rename` gives 8 tensors other names than config.json asks for"}}};
  for (const char* to : {"hf", "dcp"})
    for (const Row& row : rows) {
      Request request = model.request(to);
      for (const char* text : row.rename) request.names.renames.push_back(parse_rename("rename", text));
      for (const char* text : row.drop) request.names.drop.emplace_back("drop", text);
      for (const char* text : row.keep) request.names.keep.emplace_back("keep", text);
      CHECK(model.notes(request, kAsksFor) == row.notes);
      CHECK(model.notes(request, "missing").empty());
      request.allow_missing = true;
      const bool misses = !row.notes.empty();
      CHECK(model.notes(request, "missing") == Sentences{std::string("`allow-missing` has no effect: no ") +
                                                         (misses ? "other " : "") + "tensor is missing"});
    }
}

TEST_CASE("A dropped tensor does not stand in the way of one that takes its name") {
  LackingModel model;
  Request taken = model.request("hf");
  taken.names.drop.emplace_back("drop", "^lm_head");
  taken.names.renames.push_back(parse_rename("rename", "^model.norm.weight$=lm_head.weight"));
  const auto job = plan_convert(model.files, taken);
  CHECK(job->target.find_logical("lm_head.weight"));
  CHECK_FALSE(job->target.find_logical("model.norm.weight"));
}

TEST_CASE("No shards are made of a model without its attention") {
  LackingModel model;
  Request request = model.request("ranks");
  request.names.drop.emplace_back("drop", "self_attn");
  check_refused([&] { plan_convert(model.files, request); }, {});
}

TEST_CASE("Renaming tensors to the model's names completes it") {
  LackingModel model;
  Request request = model.request("hf");
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of({})) {
    std::string name = parameter.name;
    if (const std::size_t at = name.find("self_attn"); at != name.npos) name.replace(at, 9, "attention");
    tensors[name] = {DType::kBF16, parameter.shape, std::string(num_bytes(DType::kBF16, parameter.shape).value(), 'x')};
  }
  model.files.write("/m/model.safetensors", safetensors_bytes(tensors));
  check_refused([&] { plan_convert(model.files, request); }, {.says = "8 tensors that config.json asks for"});
  request.names.renames = {parse_rename("rename", "\\.attention\\.=.self_attn.")};
  CHECK(model.notes(request, "missing").empty());
}

TEST_CASE("An optimizer that is left out is counted once, and not if it is included") {
  const fs::path nxd = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  arrange_older(nxd / "checkpoint/step_3", temp / "name", OlderForm::kByName, false);
  struct Row {
    fs::path source;
    std::string counted;
  };
  const Row rows[] = {{nxd / "checkpoint/step_3", "4 files of the optimizer (206 kB) are left out"},
                      {temp / "name", "4 files of the optimizer (210 kB) are left out"}};
  for (const Row& row : rows)
    for (const char* to : {"hf", "nxd"}) {
      CAPTURE(row.source, to);
      RequestFields fields{.layout = to, .config = nxd / "original"};
      if (to == std::string("nxd")) fields.tp = 2;
      const auto notes = [&] {
        Sentences notes = plan_convert(convert_request(row.source, temp / "out", fields))->notes.texts();
        std::erase_if(notes, [](const std::string& note) { return note.find("optimizer") == note.npos; });
        return notes;
      };
      Sentences expected{row.counted};
      if (to == std::string("nxd"))
        expected.push_back("training cannot continue from the model alone: `with-optimizer` includes its optimizer");
      CHECK(notes() == expected);
      if (to == std::string("hf")) continue;
      fields.with_optimizer = true;
      for (const std::string& note : notes()) CHECK_THAT(note, !Says("left out"));
    }
}

TEST_CASE("Without a model_type it is unknown whether a Hugging Face directory is complete") {
  constexpr const char* kUnknown = "it is unknown whether the checkpoint has every tensor of its model";
  LackingModel model;
  CHECK(model.notes(model.request("hf"), kUnknown).empty());
  model.files.write("/m/config.json", "{}");
  CHECK(model.notes(model.request("hf"), kUnknown) ==
        Sentences{std::string("config.json has no \"model_type\", so ") + kUnknown});
  model.files.remove("/m/config.json");
  CHECK(model.notes(model.request("dcp"), kUnknown) ==
        Sentences{std::string("there is no config.json in /m, so ") + kUnknown +
                  "; to use a config.json from elsewhere, set `config`"});
}

TEST_CASE("Layers beyond those of config.json are said to be just that") {
  LackingModel model;
  model.files.write("/m/config.json", TinyModel{.layers = 1}.config().dump());
  CHECK(model.notes(model.request("hf"), "config.json") ==
        Sentences{"num_hidden_layers is 1 in config.json, but the files have layers 0 to 1"});
}

TEST_CASE("Tensors of another dtype than in config.json are noted, whatever the two are") {
  for (const auto& [dtype, declared] : {std::pair(DType::kF16, "bfloat16"),
                                        {DType::kBF16, "float16"},
                                        {DType::kBF16, "float32"},
                                        {DType::kF32, "float16"}}) {
    LackingModel model;
    Random random(8);
    write_model(model.files, "/m", {}, random_tensors({}, random, dtype));
    nlohmann::json config = TinyModel{}.config();
    config["torch_dtype"] = declared;
    model.files.write("/m/config.json", config.dump());
    CHECK(model.notes(model.request("hf"), "although config.json has") ==
          Sentences{fmt::format("21 tensors are {0}, although config.json has {1}: `dtype` {1} casts them",
                                describe(dtype).torch_name, declared)});
    config["torch_dtype"] = describe(dtype).torch_name;
    model.files.write("/m/config.json", config.dump());
    CHECK(model.notes(model.request("hf"), "although config.json has").empty());
  }
}

TEST_CASE("Every file of weights that is not read is named in one note, with an index and without, in every layout") {
  const std::vector<std::string> strangers{"adapter_model.safetensors",
                                           "extra.safetensors",
                                           "flax_model.msgpack",
                                           "medusa_heads.pt",
                                           "mm_projector.bin",
                                           "model-extra.safetensors",
                                           "rust_model.ot",
                                           "sub/more.safetensors",
                                           "tf_model.h5",
                                           "value_head.pth",
                                           "weights.npz",
                                           "x.ckpt",
                                           "x.gguf"};
  std::string list;
  for (const std::string& name : strangers) list += (list.empty() ? "" : ", ") + name;
  for (const std::size_t count : {1, 3})
    for (const char* to : {"hf", "dcp", "ranks", "nxd"}) {
      CAPTURE(count, to);
      LackingModel model(count);
      for (const std::string& name : strangers) model.files.write(fs::path("/m") / name, "x");
      CHECK(model.notes(model.request(to), "extra.safetensors") ==
            Sentences{"left out, as they are not among the model's weights: " + list});
    }
}

TEST_CASE("Weights that are read, their index and hidden files are no strangers") {
  LackingModel model(3);
  model.files.write("/m/.cache/x.safetensors", "x");
  model.files.write("/m/training_args.bin", "x");
  CHECK(model.notes(model.request("hf"), "left out").empty());
  CHECK(copies(*plan_convert(model.files, model.request("hf")), "/m/training_args.bin", "training_args.bin"));
}

TEST_CASE("Strangers are named where no config.json makes the directory a model's") {
  LackingModel model;
  model.files.remove("/m/config.json");
  model.files.write("/m/extra.safetensors", "x");
  CHECK(model.notes(model.request("hf"), "left out") ==
        Sentences{"left out, as it is not among the model's weights: extra.safetensors"});
}

TEST_CASE("With config.json from elsewhere, the tokenizer next to it comes along, else the checkpoint's own") {
  LackingModel model;
  model.files.write("/cfg/config.json", TinyModel().config().dump());
  model.files.remove("/m/config.json");
  const Request request = model.request("hf", "/cfg");
  model.files.write("/m/tokenizer.json", "own");
  CHECK(copies(*plan_convert(model.files, request), "/m/tokenizer.json", "tokenizer.json"));

  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "special_tokens_map.json"})
    model.files.write(fs::path("/cfg") / name, "theirs");
  model.files.write("/cfg/notes.txt", "private");
  const auto job = plan_convert(model.files, request);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "special_tokens_map.json"})
    CHECK(copies(*job, fs::path("/cfg") / name, name));
  CHECK(job->copied_files.size() == 5);  // with config.json
  CHECK(model.notes(request, "tokenizer") == Sentences{"used the tokenizer of /cfg, and left out the one in /m"});
  model.files.write("/m/tokenizer.json", "theirs");
  CHECK(model.notes(request, "tokenizer").empty());
}

TEST_CASE("Defaults of generation next to a config.json from elsewhere are no tokenizer") {
  LackingModel model;
  model.files.remove("/m/config.json");
  model.files.write("/cfg/config.json", TinyModel().config().dump());
  model.files.write("/cfg/generation_config.json", "theirs");
  model.files.write("/m/vocab.json", "own");
  const Request request = model.request("hf", "/cfg");
  CHECK(copies(*plan_convert(model.files, request), "/m/vocab.json", "vocab.json"));
  CHECK(model.notes(request, "tokenizer").empty());
}

TEST_CASE("A tokenizer that another model left in the output directory is named") {
  LackingModel model;
  model.files.write("/out/tokenizer.json", "another");
  CHECK(model.notes(model.request("hf"), "stays in the output directory") ==
        Sentences{"tokenizer.json stays in the output directory, and may belong to another model"});
  model.files.write("/m/tokenizer.json", "own");
  CHECK(model.notes(model.request("hf"), "stays").empty());
}

TEST_CASE("The tokenizer of a model's own directory takes precedence over one next to another config.json") {
  LackingModel model;
  model.files.write("/cfg/config.json", TinyModel().config().dump());
  model.files.write("/cfg/tokenizer.json", "theirs");
  const Request request = model.request("hf", "/cfg/config.json");
  CHECK(copies(*plan_convert(model.files, request), "/cfg/tokenizer.json", "tokenizer.json"));
  model.files.write("/m/tokenizer.json", "own");
  CHECK(copies(*plan_convert(model.files, request), "/m/tokenizer.json", "tokenizer.json"));
  CHECK(model.notes(request, "tokenizer") == Sentences{"used the tokenizer of /m, and left out the one in /cfg"});
}

}  // namespace
}  // namespace reshard::test
