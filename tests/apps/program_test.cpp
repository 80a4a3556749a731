// The program run as a user runs it.

#include "support/program.h"

#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

std::string golden(const std::string& name) {
  return testdata("golden/optimum/" + name + "/original").string();
}

/// The lines of standard error of a failed run: what happened and, where there is one, what to try. Never said twice.
std::vector<std::string> error_lines(const ProgramResult& result) {
  std::vector<std::string> lines;
  std::istringstream in(result.err);
  for (std::string line; std::getline(in, line);)
    if (line.find("note:") == std::string::npos) lines.push_back(line);
  return lines;
}

void check_error(const ProgramResult& result, int exit_code, const std::string& says) {
  check_failed(result, exit_code, says);
  const auto lines = error_lines(result);
  REQUIRE(lines.size() >= 1);
  CHECK(lines.size() <= 2);
  CHECK(lines[0].substr(0, 9) == "reshard: ");
}

}  // namespace

TEST_CASE("A header with very many keys of metadata is shown within seconds") {
  const TempDir dir;
  std::string metadata;
  for (int i = 0; i < 100'000; ++i) metadata += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":\"v\"";
  write_file(dir / "m.safetensors", safetensors_bytes("{\"__metadata__\":{" + metadata +
                                                          R"(},"a":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}})",
                                                      std::string(16, '\0')));
  const ProgramResult result = run_reshard({"inspect", "--json", (dir / "m.safetensors").string()}, "ulimit -t 30;");
  CHECK(result.exit_code == 0);
  CHECK(nlohmann::json::parse(result.out).at("metadata").size() == 100'000);
}

TEST_CASE("Names and paths that hide or reorder text are escaped on a terminal, and data in JSON") {
  const TempDir dir;
  const std::string reorder = "\xe2\x80\xae", zero_width = "\xe2\x80\x8b";
  const fs::path file = dir / ("m" + reorder + ".safetensors");
  const std::string name = "model." + zero_width + "weight";
  write_safetensors(file, {{name, {reshard::DType::kI32, {4}, std::string(16, '\0')}}});
  const std::vector<std::vector<std::string>> commands{
      {"inspect", file.string(), "--tensors"},
      {"inspect", file.string() + "x"},
      {"convert", file.string(), (dir / "out").string(), "--drop", "none"},
      {"convert", file.string(), (dir / "dry").string(), "--dry-run"},
      {"verify", file.string(), file.string()}};
  for (const auto& command : commands) {
    const ProgramResult result = run_reshard(command);
    INFO(command.front() << ": " << result.out << result.err);
    for (const std::string& hidden : {reorder, zero_width}) {
      CHECK(result.out.find(hidden) == std::string::npos);
      CHECK(result.err.find(hidden) == std::string::npos);
    }
  }
  CHECK_THAT(run_reshard(commands[0]).out, Says("m\\xe2\\x80\\xae.safetensors"));
  CHECK_THAT(run_reshard(commands[0]).out, Says("model.\\xe2\\x80\\x8bweight"));
  const auto json = nlohmann::json::parse(run_reshard({"inspect", "--json", file.string()}).out);
  CHECK(json.at("tensors").at(0).at("name") == name);
}

TEST_CASE("a model is sharded, inspected and consolidated into the same bytes") {
  const TempDir dir;
  const std::string model = golden("qwen3-tp4-pp3-gqa");
  const std::string shards = (dir / "shards").string();
  const ProgramResult shard = run_reshard({"shard", model, shards, "--tp", "4", "--pp", "3"});
  INFO(shard.err);
  REQUIRE(shard.exit_code == 0);
  CHECK_THAT(shard.err, Says("note: only reshard reads rank files in safetensors"));
  CHECK(std::count(shard.err.begin(), shard.err.end(), '\n') == 1);
  for (const char* part : {"wrote ", "GB/s", "peak memory"}) CHECK_THAT(shard.out, Says(part));
  CHECK(std::count(shard.out.begin(), shard.out.end(), '\n') == 1);

  const ProgramResult inspect = run_reshard({"inspect", shards});
  REQUIRE(inspect.exit_code == 0);
  for (const char* part : {"tp 4 × pp 3", "model.layers.{0..4}.mlp.down_proj.weight", "grouped query", "fused", "row",
                           "column", "replicated"})
    CHECK_THAT(inspect.out, Says(part));

  REQUIRE(run_reshard({"consolidate", shards, (dir / "whole").string()}).exit_code == 0);
  CHECK(read_file(dir / "whole/model.safetensors") == read_file(fs::path(model) / "model.safetensors"));
  CHECK(read_file(dir / "whole/config.json") == read_file(fs::path(model) / "config.json"));
}

TEST_CASE("consolidate without OUT_DIR writes beside the shards folder, also when given the folder itself") {
  const TempDir dir;
  const std::string model = golden("llama-tp8-gqa");
  REQUIRE(run_reshard({"shard", model, (dir / "s").string(), "--tp", "8"}).exit_code == 0);
  REQUIRE(run_reshard({"consolidate", (dir / "s/tensor_parallel_shards").string()}).exit_code == 0);
  CHECK(read_file(dir / "s/model.safetensors") == read_file(fs::path(model) / "model.safetensors"));
  check_error(run_reshard({"consolidate", (dir / "s").string()}), 3, "--force");
  CHECK(run_reshard({"consolidate", (dir / "s").string(), "--force"}).exit_code == 0);
}

TEST_CASE("names without a directory are of the working directory") {
  const TempDir dir;
  fs::copy(golden("llama-tp8-gqa"), dir / "model");
  const std::string there = "cd '" + (dir / "model").string() + "';";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"convert", "model.safetensors", "../file"},
                                                    {"convert", ".", "../whole"},
                                                    {"shard", ".", "../shards", "--tp", "2"},
                                                    {"inspect", "model.safetensors"},
                                                    {"verify", "model.safetensors", "."}}) {
    const ProgramResult result = run_reshard(arguments, there);
    INFO(arguments[0] << " " << arguments[1] << ": " << result.err);
    CHECK(result.exit_code == 0);
  }
  const std::string shards = "cd '" + (dir / "shards").string() + "';";
  CHECK(run_reshard({"consolidate", "tensor_parallel_shards"}, shards).exit_code == 0);
  for (const char* made : {"file", "whole", "shards"}) {
    CHECK(read_file(dir / made / "model.safetensors") == read_file(dir / "model/model.safetensors"));
    CHECK(fs::exists(dir / made / "config.json"));
  }
}

TEST_CASE("a dry run prints files, bytes, cuts, heads and free space, and writes nothing") {
  const TempDir dir;
  const ProgramResult result =
      run_reshard({"shard", golden("qwen3-tp4-pp3-gqa"), (dir / "o").string(), "--tp", "4", "--pp", "3", "--dry-run"});
  REQUIRE(result.exit_code == 0);
  for (const char* part : {"tp_rank_{00..03}_pp_rank_00/model.safetensors", "model.layers.0 model.layers.2", "free on",
                           "mp_metadata_pp_rank_2.json", "tp rank 2", "query 2-3", "nothing is written"})
    CHECK_THAT(result.out, Says(part));
  CHECK(snapshot(dir.path()).empty());
}

TEST_CASE("a dry run and a run agree on the files and their sizes") {
  const TempDir dir;
  const std::vector<std::string> arguments{
      "shard", golden("granite-tied-tp2-pp2"), (dir / "o").string(), "--tp", "2", "--pp", "2", "--json"};
  std::vector<std::string> dry = arguments;
  dry.push_back("--dry-run");
  const auto planned = nlohmann::json::parse(run_reshard(dry).out);
  const auto done = nlohmann::json::parse(run_reshard(arguments).out);
  CHECK(planned["dry_run"] == true);
  CHECK(done["dry_run"] == false);
  CHECK(planned["files"] == done["files"]);
  CHECK(nlohmann::json::parse(run_reshard(dry).out)["fingerprint"] == planned["fingerprint"]);
  dry.insert(dry.end(), {"--dtype", "float32"});
  CHECK(nlohmann::json::parse(run_reshard(dry).out)["fingerprint"] != planned["fingerprint"]);
  std::size_t weights = 0;
  for (const auto& file : done["files"]) {
    CHECK(fs::file_size(dir.path() / "o" / file["path"].get<std::string>()) == file["bytes"].get<std::uint64_t>());
    weights += file["kind"] == "weights";
  }
  CHECK(weights == 4);
}

TEST_CASE("The option --json prints one document and nothing else on standard output") {
  const TempDir dir;
  const std::string out = (dir / "o").string();
  const auto shard =
      nlohmann::json::parse(run_reshard({"shard", golden("llama-tp8-gqa"), out, "--tp", "8", "--json"}).out);
  CHECK(shard["command"] == "shard");
  CHECK(shard["mesh"] == nlohmann::json({{"tp", 8}, {"pp", 1}, {"vpp", 1}, {"ep", 1}}));
  CHECK(shard["attention"]["ranks"][1]["key_value_heads"] == nlohmann::json::array({1}));
  const auto inspect = nlohmann::json::parse(run_reshard({"inspect", out, "--json", "--stats"}).out);
  CHECK(inspect["kind"] == "ranks");
  CHECK(inspect["ranks"].size() == 8);
  CHECK(inspect["tensors"].size() == inspect["tensor_count"].get<std::size_t>());
  CHECK(inspect["tensors"][0]["name"] == "model.embed_tokens.weight");
  CHECK(inspect["tensors"][0]["values"]["nan_count"] == 0);
  const auto whole = nlohmann::json::parse(run_reshard({"consolidate", out, "--json"}).out);
  CHECK(whole["command"] == "consolidate");
}

TEST_CASE("The option --quiet prints nothing") {
  const TempDir dir;
  const ProgramResult result =
      run_reshard({"shard", golden("llama-tp8-gqa"), (dir / "o").string(), "--tp", "2", "--fuse-qkv", "--quiet"});
  CHECK(result.exit_code == 0);
  CHECK(result.out.empty());
  CHECK(result.err.empty());
}

TEST_CASE("a long note is printed whole, advice included") {
  const TempDir dir;
  fs::copy(testdata("golden/lora/llama-tp2-two-adapters/sharded"), dir / "in", fs::copy_options::recursive);
  for (const char* adapter : {"adapter_default", "adapter_test"})
    write_file(dir / "in" / adapter / "adapter_config.json", R"({"peft_type": "LORA", "r": 99})");
  const ProgramResult result = run_reshard({"consolidate", (dir / "in").string(), (dir / "out").string()});
  REQUIRE(result.exit_code == 0);
  std::istringstream lines(result.err);
  std::size_t notes = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("another rank than lora_A has") == std::string::npos) continue;
    CHECK(line.size() > 300);
    CHECK(line.ends_with("set \"rank_pattern\" and \"alpha_pattern\""));
    ++notes;
  }
  CHECK(notes == 2);
}

TEST_CASE("an option without effect is noted") {
  const TempDir dir;
  const ProgramResult result = run_reshard(
      {"shard", golden("llama-tp2-pp2"), (dir / "o").string(), "--tp", "2", "--fuse-qkv", "--kv-size-multiplier", "2"});
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, Says("note: --fuse-qkv has no effect"));
  CHECK_THAT(result.err, Says("note: --kv-size-multiplier has no effect"));
}

TEST_CASE("statistics of a whole and a sharded checkpoint are the same, whatever the threads") {
  const TempDir dir;
  const std::string model = golden("llama-tp8-gqa");
  REQUIRE(run_reshard({"shard", model, (dir / "o").string(), "--tp", "8"}).exit_code == 0);
  const auto values = [](const std::string& path, const char* threads) {
    const auto json =
        nlohmann::json::parse(run_reshard({"inspect", path, "--json", "--stats", "--threads", threads}).out);
    nlohmann::json by_name;
    for (const auto& tensor : json["tensors"]) by_name[tensor["name"].get<std::string>()] = tensor["values"];
    return by_name;
  };
  CHECK(values(model, "1") == values((dir / "o").string(), "3"));
}

TEST_CASE("The options --filter and --tensors choose what inspect lists") {
  const ProgramResult result =
      run_reshard({"inspect", golden("llama-tp8-gqa"), "--tensors", "--filter", R"(layers\.[01]\..*q_proj)"});
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Says("model.layers.0.self_attn.q_proj.weight"));
  CHECK_THAT(result.out, Says("model.layers.1.self_attn.q_proj.weight"));
  CHECK_THAT(result.out, !Says("k_proj"));
  CHECK_THAT(result.out, Says("2 tensors of 39"));
  check_error(run_reshard({"inspect", golden("llama-tp8-gqa"), "--filter", "("}), 2, "--filter");
}

TEST_CASE("what people see of inspect fits 100 columns") {
  const TempDir dir;
  REQUIRE(
      run_reshard({"shard", golden("qwen3-tp4-pp3-gqa"), (dir / "o").string(), "--tp", "4", "--pp", "3"}).exit_code ==
      0);
  const std::vector<std::vector<std::string>> commands{
      {"inspect", "o"}, {"inspect", "o", "--tensors"}, {"inspect", "o", "--stats"}};
  for (std::vector<std::string> command : commands) {
    command[1] = (dir / "o").string();
    std::istringstream lines(run_reshard(command).out);
    std::getline(lines, command[1]);  // the path may be of any length
    for (std::string line; std::getline(lines, line);) {
      const auto width = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
      INFO(line);
      CHECK(width <= 100);
    }
  }
}

TEST_CASE("help and version are printed with exit code 0, and every exit code is in the help") {
  const ProgramResult help = run_reshard({"--help"});
  CHECK(help.exit_code == 0);
  for (const char* code :
       {"0 done", "2 the command", "3 an input", "4 understood", "5 not enough", "6 the operating", "70 a defect"})
    CHECK_THAT(help.out, Says(code));
  for (const char* command : {"shard", "consolidate", "inspect"}) {
    const ProgramResult result = run_reshard({command, "--help"});
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Says("Exit codes"));
  }
  CHECK(run_reshard({"--version"}).out.substr(0, 8) == "reshard ");
}
