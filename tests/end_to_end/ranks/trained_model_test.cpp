// What checkpoints of training may hold beside their model, and what they may not lack: one rule for all layouts.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/zero_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKinds[] = {"dcp", "fsdp-ranks", "deepspeed"};

/// One rank's checkpoint of these tensors, and a config.json beside it.
void write_trained(const std::string& kind, const fs::path& directory, const TinyModel& tiny, const TensorMap& tensors,
                   Random& random) {
  if (kind == "dcp") {
    std::vector<dcp::Whole> stored;
    for (const auto& [name, data] : tensors)
      stored.push_back({"model." + name, data, {{Dims(data.shape.size()), data.shape, 0}}});
    dcp::write(directory, stored);
  } else if (kind == "fsdp-ranks") {
    SavedFile file;
    std::vector<std::pair<std::string, std::string>> items;
    for (const auto& [name, data] : tensors)
      items.emplace_back(name, pickled_dtensor(file, data, data.shape, {{1}}, {0}, {{'S', 0}}));
    file.save(directory / "model_world_size_1_rank_0.pt", pickles::dict(items));
    write_file(directory / "optim_world_size_1_rank_0.pt", "moments");
  } else {
    ZeroModel model;
    model.groups.emplace_back();
    for (const auto& [name, data] : tensors) {
      model.groups[0].push_back(name);
      model.module[name] = data;
      model.masters[name] = random_tensor(random, DType::kF32, data.shape);
    }
    write_zero(directory, model, 2, 1, 1, random);
  }
  write_file(directory / "config.json", tiny.config().dump());
}

/// The model with other tensors, as a training program of that kind, or as "hf", in "in".
struct Trained : Input {
  explicit Trained(const std::string& kind, const std::function<TensorMap(TensorMap, Random&)>& change = {})
      : Input({}, {}, 11), stored(change ? change(tensors, random) : tensors) {
    if (kind == "hf")
      write_model(temp / "in", model, stored);
    else
      write_trained(kind, temp / "in", model, stored, random);
  }
  TensorMap stored;
};

TEST_CASE("Tensors besides a model that is all there are noted, and written as they are") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    const Trained trained(kind, [](TensorMap tensors, Random& random) {
      tensors["model.layers.1.gauge.scale"] = random_tensor(random, DType::kBF16, {3, 2});
      return tensors;
    });
    const auto job = plan_convert(convert_request(trained / "in", trained / "out"));
    CHECK_THAT(joined_notes(*job), Says("config.json does not explain these tensors: model.layers.1.gauge.scale"));
    execute(*job, unsynced());
    CHECK((read_model(trained / "out") == trained.stored));
  }
}

/// The tensors as PEFT has them in a model that it wraps, with an adapter of q_proj.
TensorMap adapted(const TensorMap& tensors, Random& random) {
  TensorMap wrapped;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t at = name.find("q_proj.");
    if (at == name.npos) {
      wrapped[name] = tensor;
      continue;
    }
    wrapped[std::string(name).insert(at + 7, "base_layer.")] = tensor;
    const std::string module = name.substr(0, at + 7);
    wrapped[module + "lora_A.default.weight"] = random_tensor(random, DType::kF32, {4, tensor.shape[1]});
    wrapped[module + "lora_B.default.weight"] = random_tensor(random, DType::kF32, {tensor.shape[0], 4});
  }
  return wrapped;
}

TEST_CASE("A model that PEFT wraps is taken apart by names, whoever saved it") {
  for (const std::string kind : {"dcp", "fsdp-ranks", "deepspeed", "hf"}) {
    DYNAMIC_SECTION(kind) {
      const Trained trained(kind, adapted);
      const Error error = check_refused([&] { convert(trained / "in", trained / "out"); },
                                        {.kind = ErrorKind::kUnsupported,
                                         .says = "belongs to a LoRA adapter that is not merged",
                                         .hint = "`drop` \"lora_\" and `rename` \"base_layer\\.=\" for the base model",
                                         .unwritten = trained / "out"});
      CHECK_THAT(error.tensor(), Says(".self_attn.q_proj."));

      Request base = convert_request(trained / "in", trained / "less");
      base.names.drop.emplace_back("drop", "lora_");
      check_refused([&] { convert(base); },
                    {.says = "2 tensors that config.json asks for are missing", .unwritten = trained / "less"});
      base.names.renames.push_back(parse_rename("rename", "base_layer\\.="));
      base.output_directory = trained / "base";
      convert(base);
      CHECK((read_model(trained / "base") == trained.tensors));
      base.output_directory = trained / "ranks";
      base.target = convert_request({}, {}, {.layout = "ranks", .tp = 2}).target;
      convert(base);
      CHECK((consolidated(trained / "ranks", trained / "whole") == trained.tensors));

      Request adapter = convert_request(trained / "in", trained / "adapter");
      adapter.names.keep.emplace_back("keep", "lora_");
      convert(adapter);
      TensorMap lora = trained.stored;
      std::erase_if(lora, [](const auto& item) { return item.first.find("lora_") == std::string::npos; });
      CHECK((read_model(trained / "adapter") == lora));
    }
  }
}

TEST_CASE("Models that are not those of their config.json are refused, in every layout of a training program") {
  struct Row {
    const char* title;
    std::function<TensorMap(TensorMap, Random&)> tensors;
    TinyModel config;
    bool drops_names;  // rules for names do not let them through
    Refusal refusal;
  };
  const Row rows[] = {
      {"a tensor that is missing, with those that fit no name",
       [](TensorMap tensors, Random& random) {
         auto renamed = tensors.extract("model.layers.1.mlp.gate_proj.weight");
         renamed.key() = "model.layers.1.mlp.gate_porj.weight";
         tensors.insert(std::move(renamed));
         tensors["model.zzz"] = random_tensor(random, DType::kBF16, {2});
         return tensors;
       },
       {},
       false,
       {.tensor = "model.layers.1.mlp.gate_proj.weight",
        .says = {"is missing, but config.json asks for it; 2 other tensors fit no name of the family: ",
                 "model.layers.1.mlp.gate_porj.weight (did you mean model.layers.1.mlp.gate_proj.weight?)",
                 "model.zzz"}}},
      {"a tensor of another shape",
       [](TensorMap tensors, Random& random) {
         tensors["model.norm.weight"] = random_tensor(random, DType::kBF16, {18});
         return tensors;
       },
       {},
       false,
       {.tensor = "model.norm.weight", .says = "has the shape [18], but config.json asks for [16]"}},
      {"other sizes, with rules for names",
       {},
       {.intermediate = 32},
       true,
       {.tensor = "model.layers.0.mlp.gate_proj.weight", .says = "but config.json asks for [32, 16]"}},
      {"more layers",
       {},
       {.layers = 1},
       false,
       {.says = "num_hidden_layers is 1 in config.json, but the files have layers 0 to 1"}}};
  for (const Row& row : rows)
    for (const std::string kind : kKinds) {
      DYNAMIC_SECTION(row.title << ", " << kind) {
        const Trained trained(kind, row.tensors);
        write_file(trained / "in/config.json", row.config.config().dump());
        Request request = convert_request(trained / "in", trained / "out");
        if (row.drops_names) request.names.drop.emplace_back("drop", "no such tensor");
        check_refused([&] { convert(request); },
                      with_common(row.refusal, {.path = trained / "in", .unwritten = trained / "out"}));
      }
    }
}

TEST_CASE("What lies beside a model is counted") {
  const auto beside_in = [](const fs::path& directory) { return read_checkpoint(directory, {}).beside_model.value(); };
  SECTION("dcp") {
    const TempDir temp;
    Random random(14);
    std::vector<dcp::Whole> stored{{"dataloader.seed", random_tensor(random, DType::kI64, {3}), {{{0}, {3}, 0}}}};
    const TensorMap tensors = random_tensors({}, random);
    for (const auto& [name, data] : tensors) {
      stored.push_back({"model." + name, data, {{Dims(data.shape.size()), data.shape, 0}}});
      stored.push_back({"optim.state." + name + ".exp_avg", random_tensor(random, DType::kF32, {4}), {{{0}, {4}, 0}}});
    }
    dcp::write(temp / "in", stored);
    const auto beside = beside_in(temp / "in");
    CHECK(beside.optimizer.tensors == tensors.size());
    CHECK(beside.optimizer.bytes == tensors.size() * 16);
    CHECK(beside.other.tensors == 1);
    CHECK(beside.other.bytes == 24);
    CHECK(beside.files == 0);
  }
  SECTION("deepspeed") {
    const Trained trained("deepspeed");
    const auto beside = beside_in(trained / "in");
    std::uint64_t elems = 0;
    for (const auto& [name, data] : trained.tensors) elems += num_elems(data.shape).value();
    CHECK(beside.optimizer.bytes >= 4 * elems);  // masters
    CHECK(beside.optimizer.tensors > 0);
    CHECK(beside.other.tensors == 0);
  }
  SECTION("fsdp-ranks") {
    const Trained trained("fsdp-ranks");
    const auto beside = beside_in(trained / "in");
    CHECK(beside.files == 1);
    CHECK(beside.file_bytes == 7);
    CHECK(beside.optimizer.tensors == 0);
  }
}

}  // namespace
}  // namespace reshard::test
