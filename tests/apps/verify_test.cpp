// `reshard verify` run as a user runs it.

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "reshard/base/sha256.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/program.h"
#include "support/rewrite.h"
#include "support/temp_dir.h"

using namespace reshard::test;
using nlohmann::json;
using reshard::DType;
namespace fs = std::filesystem;

namespace {

const std::string kModel = testdata("golden/optimum/llama-tp8-gqa/original").string();
const std::string kShards = testdata("golden/optimum/llama-tp8-gqa/sharded").string();

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

/// Two files: one tensor alike, one that differs, one of another shape, and one that the other lacks on either side.
struct TwoFiles {
  TempDir dir;
  std::string a = (dir / "a.safetensors").string();
  std::string b = (dir / "b.safetensors").string();

  TwoFiles() {
    const TensorData same{DType::kF32, {2}, floats({1, 2})};
    write_safetensors(a, {{"same", same},
                          {"w", {DType::kF32, {2, 3}, floats({0, 1, 2, 3, 4, 5})}},
                          {"form", {DType::kF32, {1, 2}, floats({0, 0})}},
                          {"left", same}});
    write_safetensors(b, {{"same", same},
                          {"w", {DType::kF32, {2, 3}, floats({0, 1, 2, 3, 4.5, 7})}},
                          {"form", {DType::kF32, {2}, floats({0, 0})}},
                          {"right", same}});
  }
};

}  // namespace

TEST_CASE("verify ends with 0 where the two are the same, whatever their forms") {
  for (const auto& [a, b] : {std::pair(kModel, kModel), {kModel, kShards}, {kShards, kModel}}) {
    const ProgramResult result = run_reshard({"verify", a, b});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Says("same: 39 tensors, "));
    CHECK(result.err.empty());
  }
}

TEST_CASE("verify compares experts in one tensor with the same experts apart") {
  for (const std::string name : {"mixtral", "deepseek_v3", "qwen3_5_moe"}) {
    const std::string packed = testdata("golden/experts/" + name + "/packed").string();
    const std::string apart = testdata("golden/experts/" + name + "/original").string();
    for (const auto& [a, b] : {std::pair(packed, apart), {apart, packed}, {packed, packed}}) {
      const ProgramResult result = run_reshard({"verify", a, b});
      INFO(a << " " << b << " " << result.out << result.err);
      CHECK(result.exit_code == 0);
      CHECK_THAT(result.out, Says("same: "));
    }
  }
}

TEST_CASE("verify ends with 1 where they differ, and says where and by how much") {
  const TwoFiles files;
  const ProgramResult result = run_reshard({"verify", files.a, files.b});
  CHECK(result.exit_code == 1);
  CHECK(result.out == "only in " + files.a + ": left\nonly in " + files.b +
                          ": right\nother shape or dtype: form: F32 [1, 2] and F32 [2]\n"
                          "differs: w: 2 of 6 elements, first at [1, 1]: 4 and 4.5; by 2 at most\n"
                          "different: 4 of 5 tensors\n");
  CHECK(result.err.empty());
}

TEST_CASE("verify counts a tensor of another dtype once") {
  const TempDir dir;
  write_safetensors(dir / "a", {{"v", {DType::kF32, {1}, floats({1})}}, {"w", {DType::kF32, {1}, floats({1})}}});
  write_safetensors(dir / "b", {{"v", {DType::kF32, {1}, floats({1})}}, {"w", {DType::kI32, {1}, floats({1})}}});
  const ProgramResult result = run_reshard({"verify", (dir / "a").string(), (dir / "b").string()});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, Says("different: 1 of 2 tensors\n"));
}

TEST_CASE("verify compares values where a tolerance is given, also one of 0, and bytes without") {
  const TempDir dir;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_safetensors(dir / "a", {{"w", {DType::kF32, {4}, floats({0.0f, nan, 1, nan})}}});
  write_safetensors(dir / "b", {{"w", {DType::kF32, {4}, floats({-0.0f, -nan, 1, nan})}}});
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  for (const char* option : {"--rtol", "--atol"})
    for (const char* zero : {"0", "0.0", "0e0"}) {
      const ProgramResult result = run_reshard({"verify", a, b, option, zero});
      CHECK(result.exit_code == 0);
      CHECK_THAT(result.out, Says("same: 1 tensors"));
    }
  const ProgramResult bytes = run_reshard({"verify", a, b});
  CHECK(bytes.exit_code == 1);
  CHECK_THAT(bytes.out, Says("differs: w: 2 of 4 elements, first at [0]: 0 and -0"));
  write_safetensors(dir / "c", {{"w", {DType::kF32, {4}, floats({-0.0f, 2, 1, nan})}}});
  const ProgramResult number = run_reshard({"verify", a, (dir / "c").string(), "--rtol", "0"});
  CHECK(number.exit_code == 1);
  CHECK_THAT(number.out, Says("differs: w: 1 of 4 elements, first at [1]: nan(0x7fc00000) and 2\n"));
}

TEST_CASE("verify lists ten differences of a kind and counts the others") {
  const TempDir dir;
  TensorMap a;
  TensorMap b;
  for (int i = 10; i < 25; ++i) {
    a["w." + std::to_string(i)] = {DType::kF32, {1}, floats({1})};
    b["w." + std::to_string(i)] = {DType::kF32, {1}, floats({2})};
    a["left." + std::to_string(i)] = {DType::kF32, {1}, floats({1})};
  }
  write_safetensors(dir / "a", a);
  write_safetensors(dir / "b", b);
  const ProgramResult result = run_reshard({"verify", (dir / "a").string(), (dir / "b").string()});
  CHECK_THAT(result.out, Says("differs: w.19:"));
  CHECK_THAT(result.out, !Says("w.20"));
  CHECK_THAT(result.out, Says("differs: … and 5 more\n"));
  CHECK_THAT(result.out, Says(": left.19\n"));
  CHECK_THAT(result.out, Says("a: … and 5 more\n"));
  CHECK_THAT(result.out, Says("different: 30 of 30 tensors\n"));
  const json document = json::parse(run_reshard({"verify", (dir / "a").string(), (dir / "b").string(), "--json"}).out);
  CHECK(document["different"].size() == 15);
  CHECK(document["only_in_a"].size() == 15);
}

TEST_CASE("verify --json prints one document that says all, with the same exit codes") {
  const TwoFiles files;
  const ProgramResult result = run_reshard({"verify", files.a, files.b, "--json"});
  CHECK(result.exit_code == 1);
  CHECK(result.err.empty());
  CHECK(json::parse(result.out) == json{{"command", "verify"},
                                        {"a", files.a},
                                        {"b", files.b},
                                        {"same", false},
                                        {"tensors", 2},
                                        {"bytes", 32},
                                        {"only_in_a", {"left"}},
                                        {"only_in_b", {"right"}},
                                        {"other_shape_or_dtype", {"form: F32 [1, 2] and F32 [2]"}},
                                        {"different_values", json::array()},
                                        {"different",
                                         {{{"name", "w"},
                                           {"elements", 6},
                                           {"differing", 2},
                                           {"first_index", {1, 1}},
                                           {"a", "4"},
                                           {"b", "4.5"},
                                           {"max_abs_difference", 2.0}}}},
                                        {"divergent_replicas", json::array()},
                                        {"notes", json::array()}});
  const ProgramResult same = run_reshard({"verify", files.a, files.a, "--json"});
  CHECK(same.exit_code == 0);
  CHECK(json::parse(same.out)["same"] == true);
}

TEST_CASE("verify takes tolerances, with which dtypes may differ") {
  const TwoFiles files;
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--atol", "0.5"}).out, Says("differs: w: 1 of 6"));
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--atol", "2"}).out, !Says("differs"));
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--rtol", "3e-1"}).out, !Says("differs"));
  const TempDir dir;
  const std::string cast = (dir / "cast").string();
  REQUIRE(run_reshard({"convert", kModel, cast, "--dtype", "float32"}).exit_code == 0);
  CHECK(run_reshard({"verify", kModel, cast}).exit_code == 1);
  CHECK(run_reshard({"verify", kModel, cast, "--rtol", "1e-9"}).exit_code == 0);
}

TEST_CASE("verify --quiet prints nothing and its exit code tells") {
  const TwoFiles files;
  for (const auto& [b, code] : {std::pair(files.a, 0), {files.b, 1}}) {
    const ProgramResult result = run_reshard({"verify", files.a, b, "--quiet"});
    CHECK(result.exit_code == code);
    CHECK(result.out.empty());
    CHECK(result.err.empty());
  }
}

TEST_CASE("verify ends with 2 for what makes no sense and with 3 for what cannot be read") {
  const TwoFiles files;
  for (const std::string value : {"-1", "x", "", "nan", "inf", "1e", "0x1", "1,5"}) {
    for (const std::string option : {"--rtol=", "--atol="}) {
      INFO(option << value);
      check_failed(run_reshard({"verify", files.a, files.b, option + value}), 2, option.substr(0, 6));
    }
  }
  CHECK(run_reshard({"verify", files.a}).exit_code == 2);
  CHECK(run_reshard({"verify", files.a, files.b, "--max-memory", "1KiB"}).exit_code == 2);
  check_failed(run_reshard({"verify", files.a, files.b + "x"}), 3, files.b + "x: no such file or directory");
  fs::resize_file(files.b, fs::file_size(files.b) - 1);
  CHECK(run_reshard({"verify", files.a, files.b}).exit_code == 3);
}

TEST_CASE("verify ends with 3 where the ranks of one side differ among themselves, unless they may") {
  const TempDir dir;
  const std::string shards = (dir / "shards").string();
  REQUIRE(run_reshard({"shard", kModel, shards, "--tp", "2"}).exit_code == 0);
  const fs::path rank = dir / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  TensorMap tensors = read_tensors(rank);
  for (char& byte : tensors.at("model.norm.weight").bytes) byte = static_cast<char>(byte ^ 0x80);  // other signs
  rewrite_safetensors(rank, tensors);
  check_failed(run_reshard({"verify", kModel, shards}), 3, {rank.string(), "model.norm.weight"});
  const ProgramResult allowed = run_reshard({"verify", kModel, shards, "--allow-divergent-replicas"});
  CHECK(allowed.exit_code == 0);
  CHECK_THAT(allowed.err, Says("note: "));
  CHECK_THAT(allowed.err, Says("model.norm.weight"));
  const ProgramResult document = run_reshard({"verify", kModel, shards, "--allow-divergent-replicas", "--json"});
  CHECK(document.err.empty());
  const json told = json::parse(document.out)["divergent_replicas"];
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0]["text"].get<std::string>(), Says(rank.string()));
  CHECK(told[0]["tensor"] == "model.norm.weight");
  CHECK(told[0]["drift"] == false);
}

TEST_CASE(
    "Ranks whose norms drifted apart are the same to verify and consolidate, with one note, unless all must be exact") {
  const TempDir dir;
  const std::string shards = (dir / "shards").string();
  REQUIRE(run_reshard({"shard", kModel, shards, "--tp", "2"}).exit_code == 0);
  const fs::path rank = dir / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  TensorMap tensors = read_tensors(rank);
  for (const char* norm : {"model.norm.weight", "model.layers.0.input_layernorm.weight"})
    tensors.at(norm).bytes[0] ^= 1;
  rewrite_safetensors(rank, tensors);
  const std::string whole = (dir / "whole").string();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"verify", kModel, shards}, {"consolidate", shards, whole}}) {
    const ProgramResult drifted = run_reshard(command);
    CHECK(drifted.exit_code == 0);
    CHECK_THAT(drifted.err,
               Says("note: 2 tensors drifted apart between ranks in training: using the first rank's values"));
    CHECK(drifted.err.find("note:") == drifted.err.rfind("note:"));  // one alone
    std::vector<std::string> exact = command;
    if (command[0] == "consolidate") exact.push_back("--force");
    exact.insert(exact.end(), {"--replicas", "exact"});
    CHECK(run_reshard(exact).exit_code == 3);
  }
  CHECK(run_reshard({"verify", kModel, whole}).exit_code == 0);
  const json document = json::parse(run_reshard({"verify", kModel, shards, "--json"}).out);
  REQUIRE(document["divergent_replicas"].size() == 2);
  for (const json& one : document["divergent_replicas"]) {
    CHECK(one["drift"] == true);
    CHECK(one["relative_difference"] > 0);
    CHECK(one["max_abs_difference"] > 0);
  }
  REQUIRE(document["notes"].size() == 1);
  CHECK_THAT(document["notes"][0].get<std::string>(), Says("2 tensors drifted apart"));
}

TEST_CASE("The option --replicas takes three words, and none beside it that contradicts it") {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"--replicas", "last"},
                                                  {"--replicas", "exact", "--no-check-replicas"},
                                                  {"--replicas", "drift", "--allow-divergent-replicas"}}) {
    std::vector<std::string> command{"consolidate", kShards, "/nowhere/out", "--dry-run"};
    command.insert(command.end(), options.begin(), options.end());
    check_failed(run_reshard(command), 2, "--replicas");
  }
}

TEST_CASE("verify --json has the notes that people see on standard error") {
  const TempDir dir;
  fs::copy(kShards, dir / "shards", fs::copy_options::recursive);
  fs::remove(dir / "shards/shards/done");
  const std::string shards = (dir / "shards").string();
  CHECK_THAT(run_reshard({"verify", kModel, shards}).err, Says("has no file \"done\""));
  const json notes = json::parse(run_reshard({"verify", kModel, shards, "--json"}).out)["notes"];
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Says("has no file \"done\""));
}

TEST_CASE("verify with a tolerance of 0 compares values whatever their dtypes") {
  const TempDir dir;
  const std::string wide = (dir / "wide").string();
  REQUIRE(run_reshard({"convert", kModel, wide, "--dtype", "float32"}).exit_code == 0);
  CHECK(run_reshard({"verify", kModel, wide}).exit_code == 1);
  CHECK(run_reshard({"verify", kModel, wide, "--atol", "0"}).exit_code == 0);
  CHECK(run_reshard({"verify", wide, kModel, "--rtol", "0"}).exit_code == 0);
}

TEST_CASE("verify does not call two files without tensors the same") {
  const TempDir dir;
  const std::string empty = (dir / "empty.safetensors").string();
  write_safetensors(empty, {});
  check_failed(run_reshard({"verify", empty, empty}), 3, "contains no tensors");
}

TEST_CASE("A SHA256SUMS that lists nothing is an error, and one that leaves out files of tensors gets a note") {
  const TwoFiles files;
  const std::string sums = (files.dir / "SHA256SUMS").string();
  write_file(sums, "");
  check_failed(run_reshard({"verify", files.dir.path().string(), "--manifest", sums}), 3, "SHA256SUMS: lists no files");
  const std::string text = read_file(files.a);
  const std::string digest = reshard::to_hex(reshard::sha256(std::as_bytes(std::span(text))));
  write_file(sums, digest + "  a.safetensors\n");
  const ProgramResult some = run_reshard({"verify", files.dir.path().string(), "--manifest", sums});
  CHECK(some.exit_code == 0);
  CHECK_THAT(some.err, Says("does not list a file of tensors: b.safetensors"));
  const json document =
      json::parse(run_reshard({"verify", files.dir.path().string(), "--manifest", sums, "--json"}).out);
  CHECK(document.at("unlisted_files") == json::array({"b.safetensors"}));
  CHECK(document.at("notes").size() == 1);
}

TEST_CASE("Digests of two checkpoints with the same tensors are the same text, whatever their layouts") {
  const ProgramResult model = run_reshard({"inspect", kModel, "--digest"});
  CHECK(model.exit_code == 0);
  CHECK(model.out.size() > 100);
  CHECK(run_reshard({"inspect", kShards, "--digest"}).out == model.out);
}

TEST_CASE("Digests come in the order of names, whatever the order in the checkpoint") {
  const TempDir dir;
  /// A file with the tensors in this order, each of the bytes that its name gives.
  const auto digests_of = [&](const std::vector<std::string>& names) {
    std::string header = "{", data;
    for (const std::string& name : names) {
      header += (data.empty() ? "\"" : ",\"") + name + "\":{\"dtype\":\"U8\",\"shape\":[" +
                std::to_string(name.size()) + "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + name.size()) + "]}";
      data += name;
    }
    header += "}";
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size() % 256);
    length[1] = static_cast<char>(header.size() / 256);
    const std::string file = (dir / "one.safetensors").string();
    write_file(file, length + header + data);
    const ProgramResult result = run_reshard({"inspect", file, "--digest"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result.out;
  };
  const std::string sorted = digests_of({"layers.0.w", "layers.2.w", "layers.10.w", "z"});
  CHECK(sorted.find("  layers.2.w ") < sorted.find("  layers.10.w "));
  CHECK(digests_of({"z", "layers.10.w", "layers.2.w", "layers.0.w"}) == sorted);
}

TEST_CASE("A manifest in the directory that it is of is held against the files, and one elsewhere is not") {
  const TempDir dir;
  const std::string out = (dir / "out").string(), manifest = (dir / "out/reshard.manifest.json").string();
  REQUIRE(run_reshard({"shard", kModel, out, "--tp", "2", "--manifest", "--quiet"}).exit_code == 0);
  const auto verify = [&](const std::string& directory, const std::string& file) {
    return run_reshard({"verify", directory, "--manifest", file});
  };
  const ProgramResult same = verify(out, manifest);
  CHECK(same.exit_code == 0);
  CHECK_THAT(same.out, Says("same: ") && Says(" files\n"));
  const std::string text = read_file(manifest);
  write_file(manifest, "\xEF\xBB\xBF\n" + text);
  CHECK(verify(out, manifest).exit_code == 0);

  json edited = json::parse(text);
  edited["files"][0]["path"] = "other.json";
  edited["files"].push_back({{"path", "nope.safetensors"}, {"bytes", 5}, {"sha256", std::string(64, '0')}});
  write_file(manifest, edited.dump());
  const ProgramResult others = verify(out, manifest);
  CHECK(others.exit_code == 1);
  CHECK_THAT(others.out, Says("file missing: other.json") && Says("file missing: nope.safetensors"));
  CHECK_THAT(others.out, Says("different: 0 tensors, 2 files"));
  const json document = json::parse(run_reshard({"verify", out, "--manifest", manifest, "--json"}).out);
  CHECK(document.at("missing_files") == json::array({"other.json", "nope.safetensors"}));
  CHECK_FALSE(document.at("same"));
  edited["files"].erase(0);
  write_file(manifest, edited.dump());
  CHECK_THAT(verify(out, manifest).out, Says("different: 0 tensors, 1 file\n"));
  CHECK(verify(kModel, manifest).exit_code == 0);  // of tensors alone

  write_file(manifest, text);
  std::string config = read_file(dir / "out/config.json");
  config.back() = ' ';
  write_file(dir / "out/config.json", config);
  write_file(dir / "out/more.safetensors", "x");
  const ProgramResult changed = verify(out, manifest);
  CHECK(changed.exit_code == 1);
  CHECK_THAT(changed.out, Says("file differs: config.json") && !Says("missing"));
  CHECK_THAT(changed.err, Says("does not list a file of tensors: more.safetensors"));
}

TEST_CASE("A byte of a rank file's header that changed is a file that differs from its manifest") {
  const TempDir dir;
  const std::string out = (dir / "out").string(), manifest = (dir / "out/reshard.manifest.json").string();
  REQUIRE(run_reshard({"shard", kModel, out, "--tp", "2", "--manifest", "--quiet"}).exit_code == 0);
  const std::string rank = "tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors";
  std::string bytes = read_file(dir / "out" / rank);
  const auto at = bytes.find("\"format\":\"pt\"");
  REQUIRE(at != std::string::npos);
  bytes[at + 11] = 'x';
  write_file(dir / "out" / rank, bytes);
  const ProgramResult changed = run_reshard({"verify", out, "--manifest", manifest});
  CHECK(changed.exit_code == 1);
  CHECK(changed.out == "file differs: " + rank + "\ndifferent: 0 tensors, 1 file\n");
}

TEST_CASE("The manifest of a single file's conversion names the file") {
  const TempDir dir;
  const std::string out = (dir / "out").string();
  REQUIRE(run_reshard({"convert", kModel + "/model.safetensors", out, "--manifest", "--quiet"}).exit_code == 0);
  std::vector<std::string> names;
  const json manifest = json::parse(read_file(dir / "out/reshard.manifest.json"));
  for (const json& source : manifest.at("sources")) names.push_back(source.at("path"));
  CHECK(names == std::vector<std::string>{"config.json", "model.safetensors"});
}
