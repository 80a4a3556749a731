// Directories of training runs as NxD and optimum-neuron leave them: testdata/golden/zero1.

#include "reshard/plan/source/tags.h"

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/convert.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNxdCases[] = {"nxd-llama-dp2-tp2", "nxd-llama-dp4-tp2-pp2", "nxd-llama-tied-dp2-tp4-m2-fused"};

fs::path golden(const std::string& name) {
  return testdata("golden/zero1") / name;
}

/// A run's directory with the case's one tag, step_3.
void copy_run(const std::string& name, const fs::path& to) {
  fs::copy(golden(name) / "checkpoint", to, fs::copy_options::recursive);
}

ConsolidateRequest request_of(const fs::path& checkpoint, const fs::path& output) {
  ConsolidateRequest request;
  request.source.path = checkpoint;
  request.output_directory = output;
  return request;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

TEST_CASE("A training run's directory is consolidated with a config.json from elsewhere, byte for byte") {
  for (const char* name : kNxdCases) {
    DYNAMIC_SECTION(name) {
      const TempDir temp;
      ConsolidateRequest request = request_of(golden(name) / "checkpoint", temp / "out");
      for (const fs::path& config : {golden(name) / "original", golden(name) / "original/config.json"}) {
        request.source.config = config;
        request.force = true;
        const auto job = plan_consolidate(request);
        CHECK_THAT(joined(job->notes), Says("checkpoint: step_3 is taken"));
        CHECK(execute(*job, unsynced()).divergent.empty());
        CHECK(names_in(temp / "out") == std::vector<std::string>{"config.json", "model.safetensors"});
        CHECK((read_model(temp / "out") == read_model(golden(name) / "original")));
        CHECK(read_file(temp / "out/config.json") == read_file(golden(name) / "original/config.json"));
      }
      request.source.config.clear();
      check_refused([&] { plan_consolidate(request); },
                    {.path = golden(name) / "checkpoint/step_3", .hint = "`config`"});
    }
  }
}

TEST_CASE("Of several tags the newest finished one is consolidated, or the one that is asked for") {
  const TempDir temp;
  copy_run(kNxdCases[0], temp / "run");
  fs::copy(temp / "run/step_3", temp / "run/step_20", fs::copy_options::recursive);
  fs::remove(temp / "run/step_20/done");
  fs::copy(temp / "run/step_3", temp / "run/step_10", fs::copy_options::recursive);
  ConsolidateRequest request = request_of(temp / "run", temp / "out");
  request.source.config = golden(kNxdCases[0]) / "original";
  const auto newest = plan_consolidate(request);
  CHECK(newest->source_directory == temp / "run/step_10");
  CHECK_THAT(joined(newest->notes), Says("step_20 is newer, but not finished"));
  request.source.tag = "step_20";
  const auto asked = plan_consolidate(request);
  CHECK(asked->source_directory == temp / "run/step_20");
  CHECK_THAT(joined(asked->notes), Says("has no file \"done\""));
  request.source.tag = {};
  write_file(temp / "run/latest", "step_3");
  CHECK(plan_consolidate(request)->source_directory == temp / "run/step_3");
}

TEST_CASE("Without OUT_DIR nothing is written into a tag, which would then be read as what was written") {
  for (const char* config_at : {"run", "run/step_3", ""}) {
    DYNAMIC_SECTION("config.json in " << (*config_at ? config_at : "another directory")) {
      const TempDir temp;
      copy_run(kNxdCases[0], temp / "run");
      const fs::path config = golden(kNxdCases[0]) / "original/config.json";
      ConsolidateRequest request;
      request.source.path = temp / "run";
      if (std::string(config_at).empty())
        request.source.config = config;
      else
        fs::copy(config, temp / config_at / "config.json");
      check_refused([&] { consolidate(request); },
                    {.kind = ErrorKind::kUsage, .says = "no output directory was given"});
      request.output_directory = temp / "run/step_3";
      check_refused([&] { consolidate(request); }, {.kind = ErrorKind::kUsage,
                                                    .path = temp / "run/step_3",
                                                    .says = "the output directory is inside the shards folder"});
      CHECK_FALSE(fs::exists(temp / "run/step_3/model.safetensors"));
      request.output_directory = temp / "run";
      consolidate(request);
      CHECK((read_model(temp / "run") == read_model(golden(kNxdCases[0]) / "original")));
    }
  }
}

TEST_CASE("What a save has written beside the ranks, and other tags of the run, are no companions") {
  const TempDir temp;
  copy_run(kNxdCases[0], temp / "run");
  fs::copy(temp / "run/step_3", temp / "run/step_1", fs::copy_options::recursive);
  fs::copy(golden(kNxdCases[0]) / "original/config.json", temp / "run/config.json");
  write_file(temp / "run/latest", "step_3");
  write_file(temp / "run/notes/latest", "mine");
  write_file(temp / "run/step_3/optim/__0_0.distcp", "states");
  consolidate(request_of(temp / "run", temp / "out"));
  CHECK(names_in(temp / "out") == std::vector<std::string>{"config.json", "model.safetensors", "notes"});
  CHECK(read_file(temp / "out/notes/latest") == "mine");
  fs::rename(temp / "run/config.json", temp / "run/step_3/config.json");
  consolidate(request_of(temp / "run/step_3", temp / "again"));
  CHECK(names_in(temp / "again") == std::vector<std::string>{"config.json", "model.safetensors"});
}

TEST_CASE("A trainer's directory of checkpoints is read, the newest that has all its files") {
  const TempDir temp;
  const fs::path from = golden("optimum-llama-dp1-tp4-m2-fused");
  fs::create_directories(temp / "run");
  for (const char* name : {"checkpoint-9", "checkpoint-10", "checkpoint-11"})
    fs::copy(from / "checkpoint", temp / "run" / name, fs::copy_options::recursive);
  fs::remove(temp / "run/checkpoint-11/shards/done");
  ConsolidateRequest request;
  request.source.path = temp / "run";
  consolidate(request);
  CHECK((read_model(temp / "run/checkpoint-10") == read_model(from / "original")));
  const FoundCheckpoint found = find_checkpoint(temp / "run", {});
  CHECK(found.path == temp / "run/checkpoint-10");
  CHECK(read_checkpoint(found.path, {ConfigUse::kLenient}).map.tensor_count() == 12);
}

TEST_CASE("A model is read and converted beside an adapter's folder that may not be read") {
  const TempDir temp;
  fs::copy(golden("optimum-llama-dp1-tp4-m2-fused") / "original", temp / "m", fs::copy_options::recursive);
  fs::create_directories(temp / "m/adapter_x");
  const TensorMap tensors = read_model(temp / "m");
  const Unprivileged nobody(temp.path());
  fs::permissions(temp / "m/adapter_x", fs::perms::none);
  const FoundCheckpoint found = find_checkpoint(temp / "m", {});
  CHECK(found.path == temp / "m");
  CHECK(read_checkpoint(found.path, {ConfigUse::kLenient}).map.tensor_count() == tensors.size());
  convert(convert_request(temp / "m", temp / "out"));
  CHECK((read_model(temp / "out") == tensors));
  fs::permissions(temp / "m/adapter_x", fs::perms::owner_all);
}

TEST_CASE("The config.json that is given goes before the one beside the weights, and is carried along instead") {
  const TempDir temp;
  const fs::path from = golden("optimum-llama-dp1-tp4-m2-fused");
  fs::copy(from / "checkpoint", temp / "run", fs::copy_options::recursive);
  json config = json::parse(read_file(from / "original/config.json"));
  config["rope_theta"] = 12345.0;
  write_file(temp / "other.json", config.dump());
  write_file(temp / "run/tokenizer.json", "{}");
  ConsolidateRequest request = request_of(temp / "run", temp / "out");
  request.source.config = temp / "other.json";
  consolidate(request);
  CHECK(read_file(temp / "out/config.json") == config.dump());
  CHECK(fs::exists(temp / "out/tokenizer.json"));
  CHECK((read_model(temp / "out") == read_model(from / "original")));
  // In place, the one that is there is not replaced without being told to.
  request.output_directory = {};
  check_refused([&] { consolidate(request); }, {.says = "config.json"});
  CHECK_FALSE(fs::exists(temp / "run/model.safetensors"));
  request.source.config = temp / "run";
  consolidate(request);
  CHECK(fs::exists(temp / "run/model.safetensors"));
  CHECK(read_file(temp / "run/config.json") == read_file(from / "checkpoint/config.json"));
  config["num_hidden_layers"] = 7;
  write_file(temp / "other.json", config.dump());
  ConsolidateRequest wrong = request_of(temp / "run/shards", temp / "none");
  wrong.source.config = temp / "other.json";
  CHECK(error_of([&] { consolidate(wrong); }).kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(temp / "none"));
}

TEST_CASE("What is wrong with the config.json that is given is an error, also where one of the directory is a note") {
  const TempDir temp;
  const fs::path checkpoint = golden("optimum-llama-dp1-tp4-m2-fused") / "checkpoint";
  fs::create_directories(temp / "empty");
  write_file(temp / "broken.json", "{");
  const auto refused = [&](const fs::path& config) {
    return check_refused(
        [&] {
          read_checkpoint(checkpoint, {ConfigUse::kLenient, {}, {}, {config}});
        },
        {.path = config});
  };
  CHECK_THAT(refused(temp / "nowhere").hint(), Says("`config`"));
  CHECK_THAT(refused(temp / "empty").what(), Says("holds no config.json"));
  CHECK_THAT(refused(temp / "broken.json").what(), Says("JSON"));
  // Where one of its own goes before it, it is not even looked at.
  const ConfigChoice choice{temp / "nowhere", true};
  CHECK_FALSE(read_checkpoint(checkpoint, {ConfigUse::kLenient, {}, {}, choice}).config_given);
}

TEST_CASE("A run's directory is converted, its dtype in a copy of the config.json that is given") {
  const TempDir temp;
  const fs::path from = golden(kNxdCases[0]);
  ConvertRequest request = convert_request(from / "checkpoint", temp / "out");
  request.source.config = from / "original";
  request.source.tag = "step_3";
  request.target.layout = layout("optimum");
  request.dtype = DType::kF32;
  const auto job = plan_convert(request);
  CHECK(job->source_directory == from / "checkpoint/step_3");
  execute(*job, unsynced());
  const json config = json::parse(read_file(temp / "out/config.json"));
  json expected = json::parse(read_file(from / "original/config.json"));
  for (const char* key : {"dtype", "torch_dtype"})
    if (expected.contains(key)) expected[key] = "float32";
  CHECK(config == expected);
  CHECK(read_checkpoint(temp / "out", {ConfigUse::kStrict}).map.tensor_count() == 21);
  request.source.config.clear();
  request.output_directory = temp / "none";
  CHECK_THAT(error_of([&] { plan_convert(request); }).hint(), Says("`config`"));
}

TEST_CASE("Files of tensors and whole models take a config.json from elsewhere when they are sharded") {
  const TempDir temp;
  const fs::path from = golden(kNxdCases[0]) / "original";
  fs::create_directories(temp / "model");
  fs::copy(from / "model.safetensors", temp / "model/model.safetensors");
  for (const char* source : {"model", "model/model.safetensors"}) {
    DYNAMIC_SECTION(source) {
      ConvertRequest request = convert_request(temp / source, temp / "out");
      request.target.layout = layout("ranks");
      request.target.tp = 2;
      check_refused([&] { plan_convert(request); }, {.hint = "`config`"});
      request.source.config = from;
      convert(request);
      CHECK((consolidated(temp / "out", temp / "whole") == read_model(from)));
    }
  }
}

}  // namespace
}  // namespace reshard::test
