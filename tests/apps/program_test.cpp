// The program run as a user runs it.

#include "support/program.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/files.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

std::string golden(const std::string& name) {
  return testdata("golden/optimum/" + name + "/original").string();
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
  const auto json = json_of({"inspect", file.string()});
  CHECK(json.at("tensors").at(0).at("name") == name);
}

TEST_CASE("a model is sharded and consolidated into the same bytes") {
  const TempDir dir;
  const std::string model = golden("qwen3-tp4-pp3-gqa"), shards = (dir / "shards").string();
  run_well({"shard", model, shards, "--tp", "4", "--pp", "3"});
  run_well({"consolidate", shards, (dir / "whole").string()});
  CHECK(read_file(dir / "whole/model.safetensors") == read_file(fs::path(model) / "model.safetensors"));
  CHECK(read_file(dir / "whole/config.json") == read_file(fs::path(model) / "config.json"));
}

TEST_CASE("consolidate without OUT_DIR writes beside the shards folder, also when given the folder itself") {
  const TempDir dir;
  const std::string model = golden("llama-tp8-gqa");
  run_well({"shard", model, (dir / "s").string(), "--tp", "8"});
  run_well({"consolidate", (dir / "s/tensor_parallel_shards").string()});
  CHECK(read_file(dir / "s/model.safetensors") == read_file(fs::path(model) / "model.safetensors"));
  check_fails({"consolidate", (dir / "s").string()}, 3, "--force");
  run_well({"consolidate", (dir / "s").string(), "--force"});
}

TEST_CASE("names without a directory are of the working directory") {
  const TempDir dir;
  fs::copy(golden("llama-tp8-gqa"), dir / "model");
  const std::string there = "cd '" + (dir / "model").string() + "';";
  for (const std::vector<std::string>& arguments : {Arguments{"convert", "model.safetensors", "../file"},
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

TEST_CASE("a dry run and a run agree on the files and their sizes") {
  const TempDir dir;
  const Arguments arguments{"shard", golden("granite-tied-tp2-pp2"), (dir / "o").string(), "--tp", "2", "--pp", "2"};
  const auto dry = [&](const Arguments& more) { return json_of(joined(joined(arguments, {"--dry-run"}), more)); };
  const auto planned = dry({}), again = dry({}), cast = dry({"--dtype", "float32"}), done = json_of(arguments);
  CHECK(planned["dry_run"] == true);
  CHECK(done["dry_run"] == false);
  CHECK(planned["files"] == done["files"]);
  CHECK(planned["fingerprint"].is_string());
  CHECK(again["fingerprint"] == planned["fingerprint"]);
  CHECK(cast["fingerprint"] != planned["fingerprint"]);
  std::size_t weights = 0;
  for (const auto& file : done["files"]) {
    CHECK(fs::file_size(dir.path() / "o" / file["path"].get<std::string>()) == file["bytes"].get<std::uint64_t>());
    weights += file["kind"] == "weights";
  }
  CHECK(weights == 4);
}

TEST_CASE("a dry run says how tensors are renamed, dropped and cast") {
  const TempDir dir;
  const Arguments arguments{"convert",
                            golden("granite-tied-tp2-pp2"),
                            (dir / "o").string(),
                            "--drop",
                            "norm",
                            "--rename",
                            "^model=m",
                            "--dtype",
                            "float32",
                            "--dry-run"};
  const ProgramResult text = run_well(arguments);
  const auto transforms = json_of(arguments).at("transforms");
  REQUIRE(transforms.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const char* const name = std::array{"rename", "drop", "cast"}[i];
    const auto tensors = transforms[i].at("tensors").get<std::size_t>();
    CHECK(transforms[i].at("transform") == name);
    CHECK(tensors > 0);
    CHECK(transforms[i].value("dtype", "") == (i == 2 ? "F32" : ""));
    CHECK_THAT(text.out, Says(fmt::format("\n{:<10}{} tensor", std::string(name), tensors)));
  }
  CHECK(
      json_of({"convert", golden("granite-tied-tp2-pp2"), (dir / "o").string(), "--dry-run"}).at("transforms").empty());
}

TEST_CASE("a long note is printed whole, advice included") {
  const TempDir dir;
  fs::copy(testdata("golden/lora/llama-tp2-two-adapters/sharded"), dir / "in", fs::copy_options::recursive);
  for (const char* adapter : {"adapter_default", "adapter_test"})
    write_file(dir / "in" / adapter / "adapter_config.json", R"({"peft_type": "LORA", "r": 99})");
  const ProgramResult result = run_well({"consolidate", (dir / "in").string(), (dir / "out").string()});
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

TEST_CASE("inspect refuses a link out of one of several adapters, and notes options without effect on them") {
  const TempDir dir;
  const std::string shards = (dir / "in").string();
  fs::copy(testdata("golden/lora/llama-tp2-two-adapters/sharded"), shards, fs::copy_options::recursive);
  check_run({"inspect", shards, "--lora", "base"}, 0, "2 sharded adapters", "--lora has no effect on adapters");
  const fs::path rank = shards + "/adapter_test/adapter_shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  fs::rename(rank, dir / "outside.pt");
  fs::create_symlink(dir / "outside.pt", rank);
  check_fails({"inspect", shards}, 3, rank.string() + ": is a link out of the checkpoint");
}

TEST_CASE("statistics of a whole and a sharded checkpoint are the same, whatever the threads") {
  const TempDir dir;
  const std::string model = golden("llama-tp8-gqa");
  run_well({"shard", model, (dir / "o").string(), "--tp", "8"});
  const auto values = [](const std::string& path, const char* threads) {
    const auto json = json_of({"inspect", path, "--stats", "--threads", threads});
    nlohmann::json by_name;
    for (const auto& tensor : json["tensors"]) by_name[tensor["name"].get<std::string>()] = tensor["values"];
    return by_name;
  };
  CHECK(values(model, "1") == values((dir / "o").string(), "3"));
}

TEST_CASE("help and version are printed with exit code 0, and every exit code is in the help") {
  const ProgramResult help = run_well({"--help"});
  for (const char* code :
       {"0 done", "2 the command", "3 an input", "4 understood", "5 not enough", "6 the operating", "70 a defect"})
    CHECK_THAT(help.out, Says(code));
  for (const char* command : {"shard", "consolidate", "inspect"}) {
    check_run({command, "--help"}, 0, "Exit codes");
  }
  CHECK(run_reshard({"--version"}).out.substr(0, 8) == "reshard ");
}
