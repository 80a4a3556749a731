// What checkpoints of training may hold beside their model, and what they may not lack: one rule for all layouts.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
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

std::string notes_of(const Job& job) {
  return nlohmann::json(job.notes).dump();
}

TEST_CASE("Tensors besides a model that is all there are noted, and written as they are") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    Random random(11);
    const TinyModel tiny;
    TensorMap tensors = random_tensors(tiny, random);
    tensors["model.layers.1.gauge.scale"] = random_tensor(random, DType::kBF16, {3, 2});
    const TempDir temp;
    write_trained(kind, temp / "in", tiny, tensors, random);
    const ConvertRequest request = convert_request(temp / "in", temp / "out");
    CHECK_THAT(notes_of(*plan_convert(local_storage(), request)),
               Says("config.json does not explain these tensors: model.layers.1.gauge.scale"));
    convert(request);
    CHECK((read_model(temp / "out") == tensors));
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
  std::vector<std::string> kinds(std::begin(kKinds), std::end(kKinds));
  kinds.emplace_back("hf");
  for (const std::string& kind : kinds) {
    DYNAMIC_SECTION(kind) {
      Random random(15);
      const TinyModel tiny;
      const TensorMap tensors = random_tensors(tiny, random);
      const TensorMap wrapped = adapted(tensors, random);
      const TempDir temp;
      if (kind == "hf")
        write_model(temp / "in", tiny, wrapped);
      else
        write_trained(kind, temp / "in", tiny, wrapped, random);

      const Error error = error_of([&] { convert(convert_request(temp / "in", temp / "out")); });
      CHECK(error.kind() == ErrorKind::kUnsupported);
      CHECK_THAT(error.tensor(), Says(".self_attn.q_proj."));
      CHECK_THAT(error.what(), Says("belongs to a LoRA adapter that is not merged"));
      CHECK_THAT(error.hint(), Says("`drop` \"lora_\" and `rename` \"base_layer\\.=\" make the base model"));

      ConvertRequest base = convert_request(temp / "in", temp / "base");
      base.names.drop.emplace_back("drop", "lora_");
      base.names.renames.push_back(parse_rename("rename", "base_layer\\.="));
      convert(base);
      CHECK((read_model(temp / "base") == tensors));
      base.output_directory = temp / "ranks";
      base.target.layout = layout("ranks");
      base.target.tp = 2;
      convert(base);
      CHECK((consolidated(temp / "ranks", temp / "whole") == tensors));

      ConvertRequest adapter = convert_request(temp / "in", temp / "adapter");
      adapter.names.keep.emplace_back("keep", "lora_");
      convert(adapter);
      TensorMap lora = wrapped;
      std::erase_if(lora, [](const auto& item) { return item.first.find("lora_") == std::string::npos; });
      CHECK((read_model(temp / "adapter") == lora));

      base = convert_request(temp / "in", temp / "less");
      base.names.drop.emplace_back("drop", "lora_");
      check_refused([&] { convert(base); }, {.says = "2 tensors that config.json asks for are missing"});
      for (const char* output : {"out", "less"}) CHECK_FALSE(fs::exists(temp / output));
    }
  }
}

TEST_CASE("Rules for names do not let a model through that has other shapes than its config.json") {
  for (const std::string kind : kKinds) {
    DYNAMIC_SECTION(kind) {
      Random random(16);
      const TinyModel tiny;
      const TempDir temp;
      write_trained(kind, temp / "in", tiny, random_tensors(tiny, random), random);
      TinyModel other = tiny;
      other.intermediate += 8;
      write_file(temp / "in/config.json", other.config().dump());
      ConvertRequest request = convert_request(temp / "in", temp / "out");
      request.names.drop.emplace_back("drop", "no such tensor");
      const Error error = error_of([&] { convert(request); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK_THAT(error.tensor(), Says(".mlp."));
      CHECK_THAT(error.what(), Says("but config.json asks for [32, 16]"));
      CHECK_FALSE(fs::exists(temp / "out"));
    }
  }
}

TEST_CASE("Where a model's tensor is missing, those that fit no name are listed with the nearest") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    Random random(12);
    const TinyModel tiny;
    TensorMap tensors = random_tensors(tiny, random);
    auto renamed = tensors.extract("model.layers.1.mlp.gate_proj.weight");
    renamed.key() = "model.layers.1.mlp.gate_porj.weight";
    tensors.insert(std::move(renamed));
    tensors["model.zzz"] = random_tensor(random, DType::kBF16, {2});
    const TempDir temp;
    write_trained(kind, temp / "in", tiny, tensors, random);
    check_refused([&] { convert(convert_request(temp / "in", temp / "out")); },
                  {.path = temp / "in",
                   .tensor = "model.layers.1.mlp.gate_proj.weight",
                   .says = {"is missing, but config.json asks for it; 2 other tensors fit no name of the family: ",
                            "model.layers.1.mlp.gate_porj.weight (did you mean "
                            "model.layers.1.mlp.gate_proj.weight?)",
                            "model.zzz"}});
    CHECK_FALSE(fs::exists(temp / "out"));
  }
}

TEST_CASE("A model's tensor of another shape is an error, and so are more layers than config.json counts") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    Random random(13);
    TinyModel tiny;
    const TempDir temp;
    TensorMap tensors = random_tensors(tiny, random);
    tensors["model.norm.weight"] = random_tensor(random, DType::kBF16, {tiny.hidden + 2});
    write_trained(kind, temp / "shape", tiny, tensors, random);
    check_refused([&] { convert(convert_request(temp / "shape", temp / "out")); },
                  {.tensor = "model.norm.weight", .says = "has the shape [18], but config.json asks for [16]"});

    tensors = random_tensors(tiny, random);
    tiny.layers = 1;
    write_trained(kind, temp / "layers", tiny, tensors, random);
    check_refused([&] { convert(convert_request(temp / "layers", temp / "out")); },
                  {.says = "num_hidden_layers is 1 in config.json, but the files have layers 0 to 1"});
  }
}

TEST_CASE("What lies beside a model is counted") {
  Random random(14);
  const TinyModel tiny;
  const TensorMap tensors = random_tensors(tiny, random);
  const TempDir temp;
  SECTION("dcp") {
    std::vector<dcp::Whole> stored;
    for (const auto& [name, data] : tensors) {
      stored.push_back({"model." + name, data, {{Dims(data.shape.size()), data.shape, 0}}});
      stored.push_back({"optim.state." + name + ".exp_avg", random_tensor(random, DType::kF32, {4}), {{{0}, {4}, 0}}});
    }
    stored.push_back({"dataloader.seed", random_tensor(random, DType::kI64, {3}), {{{0}, {3}, 0}}});
    dcp::write(temp / "in", stored);
    const auto beside = read_checkpoint(local_storage(), temp / "in", {}).beside_model.value();
    CHECK(beside.optimizer.tensors == tensors.size());
    CHECK(beside.optimizer.bytes == tensors.size() * 16);
    CHECK(beside.other.tensors == 1);
    CHECK(beside.other.bytes == 24);
    CHECK(beside.files == 0);
  }
  SECTION("deepspeed") {
    write_trained("deepspeed", temp / "in", tiny, tensors, random);
    const auto beside = read_checkpoint(local_storage(), temp / "in", {}).beside_model.value();
    std::uint64_t elems = 0;
    for (const auto& [name, data] : tensors) elems += num_elems(data.shape).value();
    CHECK(beside.optimizer.bytes >= 4 * elems);  // masters
    CHECK(beside.optimizer.tensors > 0);
    CHECK(beside.other.tensors == 0);
  }
  SECTION("fsdp-ranks") {
    write_trained("fsdp-ranks", temp / "in", tiny, tensors, random);
    const auto beside = read_checkpoint(local_storage(), temp / "in", {}).beside_model.value();
    CHECK(beside.files == 1);
    CHECK(beside.file_bytes == 7);
    CHECK(beside.optimizer.tensors == 0);
  }
}

}  // namespace
}  // namespace reshard::test
