// Directories of training runs as NxD and optimum-neuron leave them: testdata/golden/zero1.

#include "reshard/plan/source/tags.h"

#include <nlohmann/json.hpp>
#include <set>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNxdCases[] = {"nxd-llama-dp2-tp2", "nxd-llama-dp4-tp2-pp2", "nxd-llama-tied-dp2-tp4-m2-fused"};

fs::path golden(const std::string& name) {
  return testdata("golden/zero1") / name;
}

const fs::path kConfig = "original/config.json";

/// A case's directory of a run, under "run", with its one tag, step_3, or the files of a trainer's checkpoint.
struct Run {
  explicit Run(const std::string& name) : from(golden(name)) {
    fs::copy(from / "checkpoint", temp / "run", fs::copy_options::recursive);
  }
  fs::path operator/(const fs::path& relative) const { return temp / relative; }
  /// Copies one tag of it.
  void copy_tag(const fs::path& tag, const fs::path& to) const {
    fs::copy(temp / "run" / tag, temp / "run" / to, fs::copy_options::recursive);
  }
  TensorMap tensors() const { return read_model(from / "original"); }

  fs::path from;
  TempDir temp;
};
constexpr const char* kTrainer = "optimum-llama-dp1-tp4-m2-fused";

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

TEST_CASE("A training run's directory is consolidated with a config.json from elsewhere, byte for byte") {
  for (const char* name : kNxdCases) {
    DYNAMIC_SECTION(name) {
      const TempDir temp;
      const fs::path run = golden(name) / "checkpoint";
      for (const fs::path& config : {golden(name) / "original", golden(name) / kConfig}) {
        const auto job = plan_consolidate(consolidate_request(run, temp / "out", {.config = config, .force = true}));
        CHECK_THAT(joined_notes(*job), Says("checkpoint: using step_3"));
        CHECK(execute(*job, unsynced()).divergent.empty());
        CHECK(names_in(temp / "out") == std::set<std::string>{"config.json", "model.safetensors"});
        CHECK((read_model(temp / "out") == read_model(golden(name) / "original")));
        CHECK(read_file(temp / "out/config.json") == read_file(golden(name) / kConfig));
      }
      check_refused([&] { plan_consolidate(consolidate_request(run, temp / "out")); },
                    {.path = run / "step_3", .hint = "`config`"});
    }
  }
}

TEST_CASE(
    "The tokenizer of a training run is found in the folder of the step, the run, and what trainers call theirs") {
  const fs::path accelerate = testdata("golden/dcp/qwen3-fsdp1-accelerate");
  for (const char* place : {"tokenizer.json", "tokenizer/tokenizer.json", ".hf_metadata/tokenizer.json",
                            "pytorch_model_fsdp_0/huggingface/tokenizer.json"}) {
    CAPTURE(place);
    const TempDir temp;
    fs::create_directories(temp / "run");
    fs::copy(accelerate / "sharded", temp / "run/checkpoint-5", fs::copy_options::recursive);
    write_file(temp / "run/checkpoint-5" / place, "{}");
    write_file(temp / "run/checkpoint-5/chat_template.jinja", "hello");
    for (const char* read : {"run", "run/checkpoint-5", "run/checkpoint-5/pytorch_model_fsdp_0"}) {
      CAPTURE(read);
      fs::remove_all(temp / "out");
      const auto job = plan_consolidate(
          consolidate_request(temp / read, temp / "out", {.config = accelerate / "original/config.json"}));
      CHECK_THAT(joined_notes(*job), !Says("no tokenizer"));
      execute(*job, unsynced());
      CHECK(fs::exists(temp / "out/tokenizer.json"));
    }
    fs::remove_all(temp / "run/checkpoint-5" / place);
    CHECK_THAT(joined_notes(*plan_consolidate(
                   consolidate_request(temp / "run", temp / "other", {.config = accelerate / "original/config.json"}))),
               Says("there is no tokenizer next to the weights"));
  }
  const TempDir temp;
  fs::copy(golden(kNxdCases[0]) / "checkpoint", temp / "run", fs::copy_options::recursive);
  write_file(temp / "run/tokenizer.json", "{}");
  execute(
      *plan_consolidate(consolidate_request(temp / "run", temp / "out", {.config = golden(kNxdCases[0]) / kConfig})),
      unsynced());
  CHECK(fs::exists(temp / "out/tokenizer.json"));
}

TEST_CASE("An adapter next to the state of its training is the checkpoint, and config.json may be in .hf_metadata") {
  const fs::path accelerate = testdata("golden/dcp/qwen3-fsdp1-accelerate");
  const TempDir temp;
  fs::create_directories(temp / "run");
  fs::copy(accelerate / "sharded", temp / "run/checkpoint-5", fs::copy_options::recursive);
  fs::create_directories(temp / "run/checkpoint-5/pytorch_model_fsdp_0/.hf_metadata");
  fs::copy(accelerate / "original/config.json",
           temp / "run/checkpoint-5/pytorch_model_fsdp_0/.hf_metadata/config.json");
  CHECK((consolidated(temp / "run", temp / "whole", RequestFields{}) == read_model(accelerate / "original")));
  CHECK(fs::exists(temp / "whole/config.json"));

  const TensorMap adapter{{"base_model.model.model.norm.lora_A.weight", {DType::kF32, {2, 3}, std::string(24, 'a')}},
                          {"base_model.model.model.norm.lora_B.weight", {DType::kF32, {3, 2}, std::string(24, 'b')}}};
  write_safetensors(temp / "run/checkpoint-5/adapter_model.safetensors", adapter);
  write_file(temp / "run/checkpoint-5/adapter_config.json",
             R"({"peft_type": "LORA", "r": 2, "target_modules": ["norm"]})");
  const auto job = plan_convert(convert_request(temp / "run", temp / "out", {.layout = "hf"}));
  CHECK_THAT(joined_notes(*job), Says("the training state next to the adapter is left out"));
  execute(*job, unsynced());
  CHECK((read_tensors(temp / "out/adapter_model.safetensors") == adapter));
  CHECK(fs::exists(temp / "out/adapter_config.json"));
  check_refused([&] { plan_consolidate(consolidate_request(temp / "run", temp / "other")); },
                {.path = temp / "run/checkpoint-5",
                 .says = "contains a finished adapter, adapter_model.safetensors",
                 .hint = "nothing needs to be consolidated"});
}

TEST_CASE("Without OUT_DIR nothing is written into a tag, which would then be read as what was written") {
  for (const std::string config_at : {"run", "run/step_3", ""}) {
    DYNAMIC_SECTION("config.json in " << (config_at.empty() ? "another directory" : config_at)) {
      const Run run(kNxdCases[0]);
      Request request = consolidate_request(run / "run", {});
      request.output_directory.reset();
      if (config_at.empty())
        request.source.config = run.from / kConfig;
      else
        fs::copy(run.from / kConfig, run / config_at / "config.json");
      check_refused([&] { consolidate(request); },
                    {.kind = ErrorKind::kUsage, .says = "no output directory was given"});
      request.output_directory = run / "run/step_3";
      check_refused([&] { consolidate(request); }, {.kind = ErrorKind::kUsage,
                                                    .path = run / "run/step_3",
                                                    .says = "the output directory is inside the shards folder",
                                                    .unwritten = run / "run/step_3/model.safetensors"});
      request.output_directory = run / "run";
      consolidate(request);
      CHECK((read_model(run / "run") == run.tensors()));
    }
  }
}

TEST_CASE("What a save has written beside the ranks, and other tags of the run, are no companions") {
  const Run run(kNxdCases[0]);
  run.copy_tag("step_3", "step_1");
  fs::copy(run.from / kConfig, run / "run/config.json");
  write_file(run / "run/latest", "step_3");
  write_file(run / "run/notes/latest", "mine");
  write_file(run / "run/step_3/optim/__0_0.distcp", "states");
  consolidated(run / "run", run / "out");
  CHECK(names_in(run / "out") == std::set<std::string>{"config.json", "model.safetensors"});
  fs::rename(run / "run/config.json", run / "run/step_3/config.json");
  consolidated(run / "run/step_3", run / "again");
  CHECK(names_in(run / "again") == std::set<std::string>{"config.json", "model.safetensors"});
}

TEST_CASE("A trainer's directory of checkpoints is read, the newest that has all its files") {
  const TempDir temp;
  const fs::path from = golden(kTrainer);
  fs::create_directories(temp / "run");
  for (const char* name : {"checkpoint-9", "checkpoint-10", "checkpoint-11"})
    fs::copy(from / "checkpoint", temp / "run" / name, fs::copy_options::recursive);
  fs::remove(temp / "run/checkpoint-11/shards/done");
  Request request;
  request.source.path = temp / "run";
  consolidate(request);
  CHECK((read_model(temp / "run/checkpoint-10") == read_model(from / "original")));
  const FoundCheckpoint found = find_checkpoint(temp / "run", {});
  CHECK(found.path == temp / "run/checkpoint-10");
  CHECK(read_checkpoint(found.path, {ConfigUse::kLenient}).map.tensor_count() == 12);
}

TEST_CASE("The config.json that is given goes before the one beside the weights, and is carried along instead") {
  const Run run(kTrainer);
  json config = json::parse(read_file(run.from / kConfig));
  config["rope_theta"] = 12345.0;
  write_file(run / "other.json", config.dump());
  write_file(run / "run/tokenizer.json", "{}");
  CHECK((consolidated(run / "run", run / "out", {.config = run / "other.json"}) == run.tensors()));
  CHECK(read_file(run / "out/config.json") == config.dump());
  CHECK(fs::exists(run / "out/tokenizer.json"));
  // In place, the one that is there is not replaced without being told to.
  Request in_place = consolidate_request(run / "run", {}, {.config = run / "other.json"});
  in_place.output_directory.reset();
  check_refused([&] { consolidate(in_place); }, {.says = "config.json", .unwritten = run / "run/model.safetensors"});
  in_place.source.config = run / "run";
  consolidate(in_place);
  CHECK(fs::exists(run / "run/model.safetensors"));
  CHECK(read_file(run / "run/config.json") == read_file(run.from / "checkpoint/config.json"));
  merge_json(run / "other.json", {{"num_hidden_layers", 7}});
  check_refused([&] { consolidated(run / "run/shards", run / "none", {.config = run / "other.json"}); },
                {.unwritten = run / "none"});
}

TEST_CASE("What is wrong with the config.json that is given is an error, also where one of the directory is a note") {
  const TempDir temp;
  const fs::path checkpoint = golden(kTrainer) / "checkpoint";
  fs::create_directories(temp / "empty");
  write_file(temp / "broken.json", "{");
  check_refusals<const char*>(
      [&](const char* config) {
        read_checkpoint(checkpoint, {ConfigUse::kLenient, {}, {}, {temp / config}});
      },
      {},
      {{"none", "nowhere", {.path = temp / "nowhere", .hint = "`config`"}},
       {"a directory without one", "empty", {.path = temp / "empty", .says = "contains no config.json"}},
       {"no JSON", "broken.json", {.path = temp / "broken.json", .says = "JSON"}}});
  // Where one of its own goes before it, it is not even looked at.
  const ConfigChoice choice{temp / "nowhere", true};
  CHECK_FALSE(read_checkpoint(checkpoint, {ConfigUse::kLenient, {}, {}, choice}).config.is_given);
}

TEST_CASE("A run's directory is converted, its dtype in a copy of the config.json that is given") {
  const TempDir temp;
  const fs::path from = golden(kNxdCases[0]);
  Request request = convert_request(from / "checkpoint", temp / "out",
                                    {.layout = "optimum", .dtype = DType::kF32, .config = from / "original"});
  request.source.tag = "step_3";
  const auto job = plan_convert(request);
  CHECK(job->source_directory == from / "checkpoint/step_3");
  execute(*job, unsynced());
  json expected = json::parse(read_file(from / kConfig));
  for (const char* key : {"dtype", "torch_dtype"})
    if (expected.contains(key)) expected[key] = "float32";
  CHECK(json::parse(read_file(temp / "out/config.json")) == expected);
  CHECK(read_checkpoint(temp / "out", {ConfigUse::kStrict}).map.tensor_count() == 21);
  request.source.config.clear();
  request.output_directory = temp / "none";
  check_refused([&] { plan_convert(request); }, {.hint = "`config`"});
}

TEST_CASE("Files of tensors and whole models take a config.json from elsewhere when they are sharded") {
  const Input input;
  fs::rename(input / "model/config.json", input / "config.json");
  for (const char* source : {"model", "model/model.safetensors"}) {
    CAPTURE(source);
    RequestFields to{.layout = "ranks", .tp = 2, .force = true};
    check_refused([&] { convert(input / source, input / "out", to); }, {.hint = "`config`"});
    to.config = input / "config.json";
    convert(input / source, input / "out", to);
    CHECK((consolidated(input / "out", input / "whole") == input.tensors));
  }
}

}  // namespace
}  // namespace reshard::test
