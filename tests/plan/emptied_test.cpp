// Parameters that ZeRO 3 has left empty, and tensors that are empty for another reason.

#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/plan.h"
#include "support/layouts.h"
#include "support/refusals.h"
#include "support/requests.h"

namespace reshard::test {
namespace {

constexpr const char* kEmpty = "empty, as ZeRO 3 leaves";

/// A small model in memory, in /m, some of whose tensors have other shapes than config.json asks for.
struct Emptied {
  explicit Emptied(const std::string& part) {
    Random random(3);
    tensors = random_tensors({}, random);
    for (auto& [name, tensor] : tensors)
      if (name.find(part) != name.npos) tensor = {tensor.dtype, {0}, {}};
  }
  void write() { write_model(files, "/m", {}, tensors); }

  MemoryFiles files;
  TensorMap tensors;
};

TEST_CASE("Parameters that ZeRO 3 has left empty are refused like missing ones, whatever the target") {
  for (const char* part : {".weight", "q_proj", "model.norm"})
    for (const char* to : {"hf", "dcp", "ranks", "nxdi", "vllm"})
      for (const bool has_config : {true, false}) {
        CAPTURE(part, to, has_config);
        Emptied model(part);
        model.write();
        RequestFields fields{.layout = to};
        if (has_config && std::string_view(to) != "hf" && std::string_view(to) != "dcp") fields.tp = 2;
        if (!has_config) {
          model.files.remove("/m/config.json");
          fields.layout = "hf";
        }
        const Error error = check_refused([&] { plan_convert(model.files, convert_request("/m", "/out", fields)); },
                                          {.path = "/m", .says = kEmpty, .hint = "global_stepN/"});
        CHECK_THAT(error.what(), !Says("other shapes"));
      }
}

TEST_CASE("inspect notes parameters that are empty, of models and of adapters") {
  Emptied model("norm");
  model.write();
  model.files.write("/a/adapter_config.json", R"({"peft_type": "LORA", "r": 2})");
  TensorMap adapter;
  for (const char* letter : {"A", "B"})
    adapter[std::string("base_model.model.q_proj.lora_") + letter + ".weight"] = {DType::kBF16, {0}, {}};
  model.files.write("/a/adapter_model.safetensors", safetensors_bytes(adapter));
  for (const char* path : {"/m", "/a"}) {
    const Checkpoint found = read_checkpoint(model.files, path, {ConfigUse::kLenient});
    const auto says = [](const std::string& note) { return note.find(kEmpty) != note.npos; };
    CHECK(std::count_if(found.notes.begin(), found.notes.end(), says) == 1);
  }
  check_refused([&] { plan_convert(model.files, convert_request("/a", "/out", {.layout = "hf"})); },
                {.path = "/a/adapter_model.safetensors", .says = kEmpty});
}

TEST_CASE("Empty tensors that are no parameters of the model are converted, and so are those that rules leave out") {
  Emptied model("no tensor");
  model.tensors["model.layers.0.self_attn.cache"] = {DType::kF32, {0, 8}, {}};
  model.tensors["model.layers.0.self_attn.seen"] = {DType::kI64, {0}, {}};
  model.write();
  const auto job = plan_convert(model.files, convert_request("/m", "/out", {.layout = "hf"}));
  CHECK(job->target.find_logical("model.layers.0.self_attn.cache"));
  CHECK(job->target.find_logical("model.layers.0.self_attn.seen"));

  Emptied dropped("norm");
  dropped.write();
  Request request = convert_request("/m", "/out", {.layout = "hf"});
  request.names.drop.emplace_back("drop", "norm");
  CHECK_NOTHROW(plan_convert(dropped.files, request));
}

}  // namespace
}  // namespace reshard::test
