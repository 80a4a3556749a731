// The layout dcp, on what torch.distributed.checkpoint wrote: testdata/golden/dcp.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ConvertRequest dcp_request(const fs::path& source, const fs::path& config, const fs::path& output) {
  ConvertRequest request = convert_request(source, output);
  request.source.config = config;
  return request;
}

std::optional<DType> cast_of(const json& golden) {
  if (!golden.contains("cast")) return std::nullopt;
  REQUIRE(golden["cast"] == json({"float32", "bfloat16"}));
  return DType::kBF16;
}

TEST_CASE("torch's cases are complete") {
  CHECK(golden_cases("dcp").size() == 14);
}

TEST_CASE("Every case of torch.distributed.checkpoint is converted into its model, with and without config.json") {
  for (const fs::path& golden_case : golden_cases("dcp")) {
    for (const bool with_config : {true, false}) {
      DYNAMIC_SECTION(golden_case.filename().string() << " " << with_config) {
        const json golden = golden_of(golden_case);
        // Only config.json explains its names.
        if (!with_config && golden_case.filename() == "titan-llama3-v0.2.2") continue;
        const TempDir temp;
        ConvertRequest request =
            dcp_request(golden_case / "sharded", with_config ? golden_case / "original" : "", temp / "out");
        request.dtype = cast_of(golden);
        convert(request);
        CHECK(describe_tensors(read_model(temp / "out")) == golden["original"]);
        CHECK(fs::exists(temp / "out/config.json") == with_config);
      }
    }
  }
}

TEST_CASE("Every case of torch.distributed.checkpoint is cut for other ranks, and is its model still") {
  for (const fs::path& golden_case : golden_cases("dcp")) {
    for (const auto& [fsdp, tp] : {std::pair(3u, 1u), {2u, 2u}}) {
      DYNAMIC_SECTION(golden_case.filename().string() << " " << fsdp << " " << tp) {
        const json golden = golden_of(golden_case);
        const TempDir temp;
        ConvertRequest cut = dcp_request(golden_case / "sharded", golden_case / "original", temp / "cut");
        cut.target.layout = layout("dcp");
        cut.target.tp = tp;
        cut.target.options.set_number("fsdp", fsdp);
        cut.dtype = cast_of(golden);
        convert(cut);
        CHECK(fs::exists(temp / "cut/__1_0.distcp"));
        convert(dcp_request(temp / "cut", "", temp / "out"));
        CHECK(describe_tensors(read_model(temp / "out")) == golden["original"]);
      }
    }
  }
}

fs::path dcp_case(const std::string& name) {
  return testdata("golden/dcp") / name;
}

ConsolidateRequest consolidate_request(const fs::path& source, const fs::path& config, const fs::path& output) {
  ConsolidateRequest request;
  request.source.path = source;
  request.source.config = config;
  request.output_directory = output;
  return request;
}

std::string notes_of(const Job& job) {
  return json(job.notes).dump();
}

TEST_CASE("A checkpoint with an optimizer is consolidated without it, and says so") {
  const fs::path golden_case = dcp_case("llama-fsdp2-optim");
  const TempDir temp;
  const auto request = consolidate_request(golden_case / "sharded", golden_case / "original", temp / "out");
  const auto job = plan_consolidate(local_storage(), request);
  CHECK_THAT(notes_of(*job), Says("63 tensors of the optimizer's state (197 kB) are left out"));
  CHECK_THAT(notes_of(*job), Says("13 entries that are no tensors are left out, as optim.param_groups.0.lr"));
  CHECK_THAT(notes_of(*job), Says("read without the prefix model."));
  std::uint64_t bytes = 0;
  for (const LogicalTensor& tensor : job->source.state_dict()) bytes += *num_bytes(tensor.dtype, tensor.shape);
  CHECK(job->program.read_bytes == bytes);
  consolidate(request);
  CHECK(read_model(temp / "out").at("lm_head.weight").dtype == DType::kF32);
}

TEST_CASE("Entries beside the model are named and left out") {
  const fs::path golden_case = dcp_case("llama-nested-files");
  const TempDir temp;
  const auto job = plan_consolidate(local_storage(),
                                    consolidate_request(golden_case / "sharded", golden_case / "original", temp / "o"));
  CHECK_THAT(notes_of(*job), Says("2 tensors beside the model are left out: app.losses.1, app.rng"));
}

TEST_CASE("Tensors that config.json does not explain are noted by their names") {
  const fs::path golden_case = dcp_case("llama-hsdp2x2-buffers");
  const TempDir temp;
  const auto job = plan_consolidate(
      local_storage(), consolidate_request(golden_case / "sharded", golden_case / "original", temp / "out"));
  CHECK_THAT(notes_of(*job), Says("config.json does not explain these tensors: extra."));
  CHECK_THAT(notes_of(*job), Says("(13 in all)"));
}

TEST_CASE("What a trainer has besides the model's tensors has no place in shards, and can be dropped") {
  const fs::path golden_case = dcp_case("llama-hsdp2x2-buffers");
  const TempDir temp;
  ConvertRequest request = dcp_request(golden_case / "sharded", golden_case / "original", temp / "out");
  request.target.layout = layout("optimum");
  request.target.tp = 2;
  const Error error = error_of([&] { convert(request); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("tensors are not explained by config.json"));
  CHECK_THAT(error.hint(), Says("what a trainer has besides, such as buffers, `drop` leaves out"));
  CHECK_FALSE(fs::exists(temp / "out"));
  request.names.drop.emplace_back("drop", "^extra");
  convert(request);
  CHECK(read_model(golden_case / "original").size() > consolidated(temp / "out", temp / "whole").size());
}

TEST_CASE("Where a layout has no place beside a checkpoint, consolidate asks for an output directory") {
  const fs::path golden_case = dcp_case("llama-fsdp2-optim");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "dcp", fs::copy_options::recursive);
  ConsolidateRequest request = consolidate_request(temp / "dcp", golden_case / "original", "");
  request.output_directory.reset();
  const Error error = error_of([&] { consolidate(request); });
  CHECK(error.kind() == ErrorKind::kUsage);
  CHECK(error.path() == (temp / "dcp").string());
  CHECK_THAT(error.what(), Says("no output directory was given, and layout dcp has no folder beside which"));
  CHECK_THAT(error.hint(), Says("name an output directory"));
  CHECK_FALSE(fs::exists(temp / "dcp/model.safetensors"));
}

TEST_CASE("A checkpoint of torch.distributed.checkpoint becomes shards, by shard and by convert") {
  const fs::path golden_case = dcp_case("qwen3-fsdp2-r4");
  const json original = golden_of(golden_case)["original"];
  const TempDir temp;
  ShardRequest request = shard_request(golden_case / "sharded", temp / "ranks", 1, 2);
  request.source.config = golden_case / "original";
  request.target.layout = layout("optimum");
  shard(request);
  CHECK(describe_tensors(consolidated(temp / "ranks", temp / "whole")) == original);
  ConvertRequest again = dcp_request(golden_case / "sharded", golden_case / "original", temp / "vllm");
  again.target.layout = layout("vllm");
  CHECK(error_of([&] { convert(again); }).kind() == ErrorKind::kUsage);  // no degree is told
  again.target.layout = layout("ranks");
  again.target.tp = 1;
  convert(again);
  CHECK(describe_tensors(consolidated(temp / "vllm", temp / "whole2")) == original);
}

TEST_CASE("config.json is found beside a checkpoint, and in huggingface in or beside it, with the tokenizer") {
  const fs::path golden_case = dcp_case("qwen3-fsdp1-accelerate");
  const json original = golden_of(golden_case)["original"];
  for (const std::string place : {"run/step-10", "run/step-10/huggingface", "run", "run/huggingface"}) {
    CAPTURE(place);
    const TempDir temp;
    fs::create_directories(temp / "run");
    fs::copy(golden_case / "sharded/pytorch_model_fsdp_0", temp / "run/step-10", fs::copy_options::recursive);
    fs::create_directories(temp / place);
    fs::copy_file(golden_case / "original/config.json", temp / place / "config.json");
    write_file(temp / place / "tokenizer.json", "{}");
    write_file(temp / "run/step-10/__9_0.distcp", "of a larger run");
    consolidate(consolidate_request(temp / "run/step-10", "", temp / "out"));
    CHECK(describe_tensors(read_model(temp / "out")) == original);
    std::vector<std::string> names;
    for (const auto& [name, content] : snapshot(temp / "out")) names.push_back(name);
    CHECK(names == std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"});
  }
}

TEST_CASE("A folder of one checkpoint is that, one of steps is the newest, and one of several models is none") {
  const fs::path model = dcp_case("qwen3-fsdp1-accelerate") / "sharded/pytorch_model_fsdp_0";
  const TempDir temp;
  const auto add = [&](const char* folder) {
    fs::create_directories((temp / folder).parent_path());
    fs::copy(model, temp / folder, fs::copy_options::recursive);
  };
  SECTION("one model with its optimizer") {
    add("run/pytorch_model_fsdp_0");
    add("run/optimizer_0");
    CHECK(read_checkpoint(local_storage(), temp / "run", {}).path == temp / "run/pytorch_model_fsdp_0");
  }
  SECTION("steps") {
    add("run/step-10");
    add("run/step-9");
    CHECK_THAT(notes_of(*plan_consolidate(local_storage(), consolidate_request(temp / "run", "", temp / "o"))),
               Says("step-10 is taken, the newest of 2 finished checkpoints"));
  }
  SECTION("two models") {
    add("run/pytorch_model_fsdp_0");
    add("run/pytorch_model_fsdp_1");
    CHECK_THAT(error_of([&] { read_checkpoint(local_storage(), temp / "run", {}); }).what(),
               Says("holds two sharded checkpoints"));
  }
}

TEST_CASE("Files of a later save that did not finish are refused, and those of a copy are not") {
  const fs::path golden_case = dcp_case("llama-torch2.9-fsdp2-r2");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "dcp");
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto read = [&] { return read_checkpoint(local_storage(), temp / "dcp", {}); };
  fs::last_write_time(temp / "dcp/__0_0.distcp", saved - std::chrono::hours(1));
  fs::last_write_time(temp / "dcp/__1_0.distcp", saved + std::chrono::minutes(7));
  const Error error = error_of(read);
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == (temp / "dcp/__1_0.distcp").string());
  CHECK_THAT(error.what(), Says("was written 7 minutes after .metadata"));
  CHECK_THAT(error.hint(), Says("touch"));
  fs::last_write_time(temp / "dcp/__1_0.distcp", saved + std::chrono::seconds(4));
  CHECK_NOTHROW(read());
  // A copy of many hours would go from file to file.
  fs::last_write_time(temp / "dcp/__0_0.distcp", saved + std::chrono::hours(4));
  CHECK_THAT(error_of(read).what(), Says("was written 240 minutes after .metadata"));
}

TEST_CASE("A file that is missing or short is an error with its tensor, and nothing is written") {
  const fs::path golden_case = dcp_case("llama-torch2.9-fsdp2-r2");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "dcp");
  SECTION("missing") {
    fs::remove(temp / "dcp/__1_0.distcp");
    const Error error = error_of([&] { consolidate(consolidate_request(temp / "dcp", "", temp / "out")); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == (temp / "dcp/__1_0.distcp").string());
  }
  SECTION("short") {
    const auto saved = fs::last_write_time(temp / "dcp/.metadata");
    fs::resize_file(temp / "dcp/__1_0.distcp", fs::file_size(temp / "dcp/__1_0.distcp") - 1);
    fs::last_write_time(temp / "dcp/__1_0.distcp", saved);
    const Error error = error_of([&] { consolidate(consolidate_request(temp / "dcp", "", temp / "out")); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(error.tensor().empty());
    CHECK_THAT(error.what(), Says("goes past the file's end"));
  }
  CHECK_FALSE(fs::exists(temp / "out"));
}

TEST_CASE("Safetensors of ranks are read with the shapes of config.json, which tell that the last rank is missing") {
  const fs::path golden_case = dcp_case("llama-torch2.9-hf-r3");
  const json original = golden_of(golden_case)["original"];
  const TempDir temp;
  fs::create_directories(temp / "model");
  fs::copy(golden_case / "sharded", temp / "model/sharded", fs::copy_options::recursive);
  consolidate(consolidate_request(temp / "model", golden_case / "original", temp / "out"));
  CHECK(describe_tensors(read_model(temp / "out")) == original);
  for (const char* part : {"1", "2"})
    fs::remove(temp / ("model/sharded/shard-00003-model-0000" + std::string(part) + "-of-00002.safetensors"));
  const Error error =
      error_of([&] { consolidate(consolidate_request(temp / "model", golden_case / "original", temp / "out2")); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("has the shape [24, 32], but config.json asks for [35, 32]"));
  const auto job = plan_consolidate(local_storage(), consolidate_request(temp / "model", "", temp / "out2"));
  CHECK_THAT(notes_of(*job), Says("missing files of the last ranks are not noticed"));
  fs::copy(golden_case / "sharded", temp / "model/sharded",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  for (const char* part : {"1", "2"})
    fs::remove(temp / ("model/sharded/shard-00002-model-0000" + std::string(part) + "-of-00002.safetensors"));
  CHECK_THAT(error_of([&] { consolidate(consolidate_request(temp / "model", "", temp / "out2")); }).what(),
             Says("its 2 chunks have"));
}

TEST_CASE("Safetensors of ranks without all parts of the model are refused where no config.json asks for these") {
  const fs::path golden_case = dcp_case("llama-torch2.9-hf-r3");
  const TempDir temp;
  fs::create_directories(temp / "model");
  fs::copy(golden_case / "sharded", temp / "model/sharded", fs::copy_options::recursive);
  const auto file = [&](const char* rank, const char* part) {
    return temp / ("model/sharded/shard-0000" + std::string(rank) + "-model-0000" + part + ".safetensors");
  };
  const auto refused = [&](const fs::path& original) {
    const Error error = error_of([&] { consolidate(consolidate_request(temp / "model", original, temp / "out")); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(fs::exists(temp / "out"));
    return error;
  };
  SECTION("the second of two") {
    for (const char* rank : {"1", "2", "3"}) fs::remove(file(rank, "2-of-00002"));
    const Error error = refused("");
    CHECK(error.path() == (temp / "model/sharded").string());
    CHECK_THAT(error.what(), Says("holds no file of part 2 of the model, which has 2 parts"));
    CHECK_THAT(error.hint(), Says("copy the missing files"));
    CHECK_THAT(refused(golden_case / "original").what(), Says("tensors that config.json asks for are missing"));
  }
  SECTION("of another number of parts") {
    fs::rename(file("2", "1-of-00002"), file("2", "1-of-00003"));
    const Error error = refused("");
    CHECK(error.path() == file("2", "1-of-00003").string());
    CHECK_THAT(error.what(), Says("is of a model of 3 parts, but shard-00001-model-00001-of-00002.safetensors of one "
                                  "of 2"));
  }
}

TEST_CASE("Consolidated files beside those of ranks are read in their place") {
  const fs::path golden_case = dcp_case("llama-torch2.9-hf-r3");
  const TempDir temp;
  fs::copy(golden_case / "original", temp / "model", fs::copy_options::recursive);
  fs::copy(golden_case / "sharded", temp / "model/sharded", fs::copy_options::recursive);
  const Checkpoint checkpoint = read_checkpoint(local_storage(), temp / "model", {});
  CHECK(checkpoint.path == temp / "model");
  CHECK_THAT(json(checkpoint.notes).dump(), Says("there is also a sharded checkpoint in"));
}

}  // namespace
}  // namespace reshard::test
