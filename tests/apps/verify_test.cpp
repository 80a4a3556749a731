// `reshard verify` run as a user runs it.

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "reshard/base/sha256.h"
#include "support/files.h"
#include "support/program.h"
#include "support/rewrite.h"
#include "support/temp_dir.h"

using namespace reshard::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kModel = testdata("golden/optimum/llama-tp8-gqa/original").string();
const std::string kShards = testdata("golden/optimum/llama-tp8-gqa/sharded").string();

/// Two files: one tensor alike, one that differs, one of another shape, and one that the other lacks on either side.
struct TwoFiles {
  TempDir dir;
  std::string a = (dir / "a.safetensors").string();
  std::string b = (dir / "b.safetensors").string();

  TwoFiles() {
    const TensorData same = floats({2}, {1, 2});
    write_safetensors(
        a,
        {{"same", same}, {"w", floats({2, 3}, {0, 1, 2, 3, 4, 5})}, {"form", floats({1, 2}, {0, 0})}, {"left", same}});
    write_safetensors(
        b,
        {{"same", same}, {"w", floats({2, 3}, {0, 1, 2, 3, 4.5, 7})}, {"form", floats({2}, {0, 0})}, {"right", same}});
  }
};

/// The model's shards of two ranks, with a manifest.
struct Shards {
  TempDir dir;
  std::string out = (dir / "out").string(), manifest = out + "/reshard.manifest.json";

  Shards() { run_well({"shard", kModel, out, "--tp", "2", "--format", "safetensors", "--manifest", "--quiet"}); }
  /// Inverts these bits of the first `bytes` bytes of tensors of rank 1.
  std::string change(const std::vector<std::string>& names, char bits, std::size_t bytes) const {
    std::string rank = out + "/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
    TensorMap tensors = read_tensors(rank);
    for (const std::string& name : names)
      for (std::size_t i = 0; i < bytes; ++i) tensors.at(name).bytes.at(i) ^= bits;
    rewrite_safetensors(rank, tensors);
    return rank;
  }
  Arguments verify() const { return {"verify", out, "--manifest", manifest}; }
};

}  // namespace

TEST_CASE("verify --complete fails for files and training state that the copy lacks") {
  const TempDir dir;
  const std::string model = (dir / "model").string(), copy = (dir / "copy").string();
  fs::copy(testdata("golden/optimum/llama-tp2-pp2/original"), model, fs::copy_options::recursive);
  write_file(dir / "model/tokenizer.json", "{}");
  run_well({"convert", model, copy});
  run_well({"verify", model, copy, "--complete"});
  fs::remove(dir / "copy/tokenizer.json");
  run_well({"verify", model, copy});
  check_run({"verify", model, copy, "--complete"}, 1,
            {"not in " + copy + ": tokenizer.json\n", "different: 1 missing from B\n"});
  CHECK(json_of({"verify", model, copy, "--complete"}, 1)["left_behind"] == nlohmann::json{"tokenizer.json"});
  run_well({"verify", copy, model, "--complete"});  // the copy has nothing else

  const fs::path run = testdata("golden/dcp/llama-fsdp2-optim");
  const std::string whole = (dir / "whole").string(), states = (dir / "states").string();
  const std::string source = (run / "sharded").string(), config = (run / "original").string();
  run_well({"consolidate", source, whole, "--config", config});
  check_run({"verify", source, whole, "--complete", "--config", config}, 1, {"not in " + whole + ": training state ("});
  run_well({"convert", source, states, "--to", "dcp", "--fsdp", "2", "--with-optimizer", "--config", config});
  run_well({"verify", source, states, "--complete", "--config", config});
  check_fails({"verify", model, "--manifest", "x", "--complete"}, 2, {"--complete compares with B"});
}

TEST_CASE("verify --complete fails for training state of every layout, and for weights that were not read") {
  const TempDir dir;
  const auto check = [&](const std::string& source, const Arguments& config, const json& left_behind) {
    INFO(source);
    const std::string whole = (dir / "whole").string();
    fs::remove_all(whole);
    run_well(joined({"convert", source, whole, "--to", "hf", "--quiet"}, config));
    CHECK(json_of(joined({"verify", source, whole, "--complete"}, config), 1)["left_behind"] == left_behind);
  };
  const std::string nxd = testdata("golden/zero1/nxd-llama-dp2-tp2").string();
  const Arguments config{"--config", nxd + "/original"};
  check(nxd + "/checkpoint/step_3", config, {"scheduler.pt", "user_content.pt", "training state (206 kB)"});
  check(testdata("golden/zero1/optimum-llama-dp1-tp4-m2-fused/checkpoint").string(), {}, {"training state (153 kB)"});
  const std::string titan = testdata("golden/dcp/titan-llama3-v0.2.2").string();
  check(titan + "/sharded", {"--config", titan + "/original"}, {"training state (8.77 kB)"});
  fs::copy(nxd + "/original", dir / "trained");
  for (const char* name : {"extra.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"})
    fs::copy(nxd + "/original/config.json", dir / "trained" / name);
  check((dir / "trained").string(), {}, {"extra.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"});

  const std::string resharded = (dir / "resharded").string();
  run_well(joined({"convert", nxd + "/checkpoint/step_3", resharded, "--to", "dcp", "--with-optimizer"}, config));
  run_well(joined({"verify", nxd + "/checkpoint/step_3", resharded, "--complete"}, config));
}

TEST_CASE("verify says once that optimizers of NxD are not compared") {
  const std::string golden = testdata("golden/zero1/nxd-llama-dp2-tp2").string(),
                    source = golden + "/checkpoint/step_3";
  const Arguments config{"--config", golden + "/original"};
  const std::string note = "the optimizers are not compared: --with-optimizer compares them\n";
  const ProgramResult result = run_well(joined({"verify", source, source}, config));
  CHECK_THAT(result.err, Says(note));
  CHECK(result.err.find("left out") == std::string::npos);
  CHECK_THAT(run_well(joined({"verify", source, golden + "/original"}, config)).err, !Says(note));
  CHECK_THAT(run_well(joined({"verify", source, source, "--with-optimizer"}, config)).err, !Says(note));
}

TEST_CASE("verify ends with 0 where the two are the same, whatever their forms") {
  for (const auto& [a, b] : {std::pair(kModel, kModel), {kModel, kShards}, {kShards, kModel}}) {
    const ProgramResult result = check_run({"verify", a, b}, 0, "same: 39 tensors, ");
    const bool has_ranks = a == kShards || b == kShards;  // whose files do not say which rank they are
    CHECK(result.err.empty() != has_ranks);
    if (has_ranks) CHECK_THAT(result.err, Says("swapped"));
  }
}

TEST_CASE("verify compares experts in one tensor with the same experts apart") {
  for (const std::string name : {"mixtral", "deepseek_v3", "qwen3_5_moe"}) {
    const std::string packed = testdata("golden/experts/" + name + "/packed").string();
    const std::string apart = testdata("golden/experts/" + name + "/original").string();
    for (const auto& [a, b] : {std::pair(packed, apart), {apart, packed}, {packed, packed}}) {
      check_run({"verify", a, b}, 0, "same: ");
    }
  }
}

TEST_CASE("verify notes which side's config.json is not known, where names differ") {
  const std::string packed = testdata("golden/experts/mixtral/packed").string();
  const std::string apart = testdata("golden/experts/mixtral/original").string();
  const TempDir dir;
  const std::string dcp = (dir / "dcp").string();
  run_well({"convert", packed, dcp, "--to", "dcp", "--names", "transformers"});
  fs::remove(dir / "dcp" / "config.json");
  check_run({"verify", dcp, apart}, 1, {}, dcp + ": its config.json is unknown");
  const ProgramResult given = check_run({"verify", dcp, apart, "--config", apart}, 0, "same: ");
  CHECK_THAT(given.err, !Says("is unknown"));
}

TEST_CASE("verify compares adapters, drafts and Medusa's heads in the files of two served models") {
  struct Changed {
    const char* golden;
    const char* tensor;
    const char* file = "tp1_sharded_checkpoint.safetensors";
  };
  const auto changed = GENERATE(Changed{"lora-all-llama-tp2", "layers.0.self_attn.qkv_proj.q_proj.lora_A.weight"},
                                Changed{"lora-quant-llama-tp2", "layers.0.mlp.down_proj.lora_B.weight"},
                                Changed{"lora-dynamic-llama-tp2", "layers.0.mlp.down_proj.lora_B.weight",
                                        "lora1_tp0_sharded_lora_cpu_checkpoint.safetensors"},
                                Changed{"spec-fused-llama-tp2", "draft_model.norm.weight"},
                                Changed{"spec-medusa-llama-tp2", "medusa_head_1.0.linear.weight"},
                                Changed{"quant-int8-tied-qwen3-tp2", "lm_head.weight"});
  CAPTURE(changed.golden);
  const TempDir dir;
  const fs::path golden = testdata("golden/nxdi_compiled") / changed.golden;
  for (const char* side : {"a", "b"}) {
    fs::create_directories(dir / side);
    fs::copy(golden / "weights", dir / side / "weights");
    fs::copy(golden / "neuron_config.json", dir / side);
  }
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  const char* note = "compared as each rank stores them: --fused-model target compares the model alone";
  CHECK_THAT(check_run({"verify", a, b}, 0, "same: ", note).err, !Says("left out: adapters"));
  const fs::path file = dir / "b/weights" / changed.file;
  TensorMap tensors = read_tensors(file);
  tensors.at(changed.tensor).bytes.back() ^= 1;
  write_safetensors(file, tensors);
  check_run({"verify", a, b}, 1, fmt::format("differs: {} in {}: 1 of ", changed.tensor, changed.file));
  CHECK(run_reshard({"verify", a, b, "--quiet"}).exit_code == 1);
  run_well({"verify", a, b, "--fused-model", "target"});
  for (const auto& entry : fs::directory_iterator(dir / "b/weights")) {
    tensors = read_tensors(entry.path());
    tensors.erase(changed.tensor);
    write_safetensors(entry.path(), tensors);
  }
  check_run({"verify", a, b}, 1, fmt::format("only in {}: {} in {}", a, changed.tensor, changed.file));
}

TEST_CASE("verify compares a served model with the model alone, and no adapters and drafts of other numbers of ranks") {
  const fs::path golden = testdata("golden/nxdi_compiled");
  const std::string two = (golden / "spec-fused-llama-tp2").string();
  check_run({"verify", two + "/weights", two + "/original"}, 0, "same: ", "only the target model is read");
  const TempDir dir;
  for (const char* name : {"spec-fused-llama-tp2", "spec-fused-draft_tp2-kernels-llama-tp4"}) {
    fs::create_directories(dir / name);
    fs::copy(golden / name / "weights", dir / name / "weights");
    fs::copy(golden / name / "neuron_config.json", dir / name);
  }
  check_fails(
      {"verify", (dir / "spec-fused-llama-tp2").string(), (dir / "spec-fused-draft_tp2-kernels-llama-tp4").string()}, 2,
      {"has 2 ranks, and the other checkpoint 4", "try: set --fused-model to target"});
}

TEST_CASE("verify reads ranks without a config.json with that of the other side") {
  const TempDir dir;
  run_well({"shard", kModel, (dir / "out").string(), "--layout", "nxd", "--tp", "2", "--quiet"});
  fs::remove(dir / "out/config.json");
  const std::string ranks = (dir / "out").string();
  for (const Arguments& sides : {Arguments{ranks, kModel}, Arguments{kModel, ranks}})
    CHECK_THAT(run_well(joined({"verify"}, sides)).out, Says("same: "));
  CHECK_THAT(run_reshard({"verify", ranks, ranks}).err, Says("--config"));
}

TEST_CASE("verify compares values where a tolerance is given, also one of 0, and bytes without") {
  const TempDir dir;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_safetensors(dir / "a", {{"w", floats({4}, {0.0f, nan, 1, nan})}});
  write_safetensors(dir / "b", {{"w", floats({4}, {-0.0f, -nan, 1, nan})}});
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  for (const char* option : {"--rtol", "--atol"})
    for (const char* zero : {"0", "0.0", "0e0"}) {
      check_run({"verify", a, b, option, zero}, 0, "same: 1 tensors");
    }
  check_run({"verify", a, b}, 1, "differs: w: 2 of 4 elements, first at [0]: 0 and -0");
  write_safetensors(dir / "c", {{"w", floats({4}, {-0.0f, 2, 1, nan})}});
  check_run({"verify", a, (dir / "c").string(), "--rtol", "0"}, 1,
            "differs: w: 1 of 4 elements, first at [1]: nan(0x7fc00000) and 2\n");
}

TEST_CASE("verify lists ten differences of a kind and counts the others") {
  const TempDir dir;
  TensorMap a;
  TensorMap b;
  for (int i = 10; i < 25; ++i) {
    a["w." + std::to_string(i)] = floats({1}, {1});
    b["w." + std::to_string(i)] = floats({1}, {2});
    a["left." + std::to_string(i)] = floats({1}, {1});
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
  const json document = json_of({"verify", (dir / "a").string(), (dir / "b").string()}, 1);
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
                                        {"left_behind", json::array()},
                                        {"divergent_replicas", json::array()},
                                        {"notes", json::array()},
                                        {"findings", json::array()}});
  const ProgramResult same = run_well({"verify", files.a, files.a, "--json"});
  CHECK(json::parse(same.out)["same"] == true);
}

TEST_CASE("verify takes tolerances, with which dtypes may differ") {
  const TwoFiles files;
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--atol", "0.5"}).out, Says("differs: w: 1 of 6"));
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--atol", "2"}).out, !Says("differs"));
  CHECK_THAT(run_reshard({"verify", files.a, files.b, "--rtol", "3e-1"}).out, !Says("differs"));
  const TempDir dir;
  const std::string cast = (dir / "cast").string();
  run_well({"convert", kModel, cast, "--dtype", "float32"});
  CHECK(run_reshard({"verify", kModel, cast}).exit_code == 1);
  run_well({"verify", kModel, cast, "--rtol", "1e-9"});
  run_well({"verify", kModel, cast, "--atol", "0"});
  run_well({"verify", cast, kModel, "--rtol", "0"});
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
      check_fails({"verify", files.a, files.b, option + value}, 2, option.substr(0, 6));
    }
  }
  CHECK(run_reshard({"verify", files.a}).exit_code == 2);
  CHECK(run_reshard({"verify", files.a, files.b, "--max-memory", "1KiB"}).exit_code == 2);
  check_fails({"verify", files.a, files.b + "x"}, 3, files.b + "x: no such file or directory");
  fs::resize_file(files.b, fs::file_size(files.b) - 1);
  CHECK(run_reshard({"verify", files.a, files.b}).exit_code == 3);
}

TEST_CASE("verify ends with 3 where the ranks of one side differ among themselves, unless they may") {
  const Shards shards;
  const std::string rank = shards.change({"model.norm.weight"}, '\x80', 64);  // other signs
  check_fails({"verify", kModel, shards.out}, 3, {rank, "model.norm.weight"});
  const Arguments allowed{"verify", kModel, shards.out, "--allow-divergent-replicas"};
  check_run(allowed, 0, {}, {"note: ", "model.norm.weight"});
  const ProgramResult document = run_reshard(joined(allowed, {"--json"}));
  CHECK(document.err.empty());
  const json told = json::parse(document.out)["divergent_replicas"];
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0]["text"].get<std::string>(), Says(rank));
  CHECK(told[0]["tensor"] == "model.norm.weight");
  CHECK(told[0]["drift"] == false);
}

TEST_CASE(
    "Ranks whose norms drifted apart are the same to verify and consolidate, with one note, unless all must be exact") {
  const Shards shards;
  shards.change({"model.norm.weight", "model.layers.0.input_layernorm.weight"}, 1, 1);
  const std::string whole = (shards.dir / "whole").string();
  for (const Arguments& command : {Arguments{"verify", kModel, shards.out}, {"consolidate", shards.out, whole}}) {
    const ProgramResult drifted = check_run(
        command, 0, {}, "note: 2 tensors drifted apart between ranks in training: using the first rank's values");
    CHECK(drifted.err.find("drifted") == drifted.err.rfind("drifted"));  // one note alone
    const Arguments exact{"--replicas", "exact", "--force"};
    check_run(joined(command, {exact.begin(), exact.end() - (command[0] == "verify")}), 3, {});
  }
  run_well({"verify", kModel, whole});
  const std::string manifest = (shards.dir / "manifest.json").string();  // elsewhere, so that files are not compared
  fs::copy_file(shards.manifest, manifest);
  for (const Arguments& command :
       {Arguments{"verify", kModel, shards.out}, {"verify", shards.out, "--manifest", manifest}}) {
    const json document = json_of(command);
    REQUIRE(document["divergent_replicas"].size() == 2);
    for (const json& one : document["divergent_replicas"]) {
      CHECK(one["drift"] == true);
      CHECK(one["relative_difference"] > 0);
      CHECK(one["max_abs_difference"] > 0);
    }
    REQUIRE(document["notes"].size() == 1);
    CHECK_THAT(document["notes"][0].get<std::string>(), Says("2 tensors drifted apart"));
    CHECK(document["findings"] ==
          json::array({{{"kind", "replicas"},
                        {"text", document["notes"][0]},
                        {"tensor_count", 2},
                        {"tensors", {"model.layers.0.input_layernorm.weight", "model.norm.weight"}}}}));
  }
}

TEST_CASE("The option --replicas takes three words, and none beside it that contradicts it") {
  for (const Arguments& options : {Arguments{"--replicas", "last"},
                                   {"--replicas", "exact", "--no-check-replicas"},
                                   {"--replicas", "drift", "--allow-divergent-replicas"}})
    check_fails(joined({"consolidate", kShards, "/nowhere/out", "--dry-run"}, options), 2, "--replicas");
}

TEST_CASE("verify --json has the notes that people see on standard error") {
  const TempDir dir;
  fs::copy(kShards, dir / "shards", fs::copy_options::recursive);
  fs::remove(dir / "shards/shards/done");
  const std::string shards = (dir / "shards").string();
  CHECK_THAT(run_reshard({"verify", kModel, shards}).err, Says("has no file \"done\""));
  const json findings = json_of({"verify", kModel, shards})["findings"];
  REQUIRE(findings.size() == 2);
  CHECK(std::any_of(findings.begin(), findings.end(), [](const json& note) {
    return note["kind"] == "mismatch" &&
           note["text"].get<std::string>().find("has no file \"done\"") != std::string::npos;
  }));
}

TEST_CASE("verify does not call two files without tensors the same") {
  const TempDir dir;
  const std::string empty = (dir / "empty.safetensors").string();
  write_safetensors(empty, {});
  check_fails({"verify", empty, empty}, 3, "contains no tensors");
}

TEST_CASE("A SHA256SUMS that lists nothing is an error, and one that leaves out files of tensors gets a note") {
  const TwoFiles files;
  const std::string sums = (files.dir / "SHA256SUMS").string();
  write_file(sums, "");
  check_fails({"verify", files.dir.path().string(), "--manifest", sums}, 3, "SHA256SUMS: lists no files");
  const std::string text = read_file(files.a);
  const std::string digest = reshard::to_hex(reshard::sha256(std::as_bytes(std::span(text))));
  write_file(sums, digest + "  a.safetensors\n");
  check_run({"verify", files.dir.path().string(), "--manifest", sums}, 0, {},
            "does not list a file of tensors: b.safetensors");
  const json document = json_of({"verify", files.dir.path().string(), "--manifest", sums});
  CHECK(document.at("unlisted_files") == json::array({"b.safetensors"}));
  CHECK(document.at("notes").size() == 1);
}

TEST_CASE("Digests of two checkpoints with the same tensors are the same text, whatever their layouts") {
  const ProgramResult model = run_well({"inspect", kModel, "--digest"});
  CHECK(model.out.size() > 100);
  CHECK(run_reshard({"inspect", kShards, "--digest"}).out == model.out);
}

TEST_CASE("Digests come in the order of names, whatever the order in the checkpoint") {
  const TempDir dir;
  /// A file with the tensors in this order, each of the bytes that its name gives.
  const auto digests_of = [&](const std::vector<std::string>& names) {
    nlohmann::ordered_json header;
    std::string data;
    for (const std::string& name : names) {
      const std::size_t begin = data.size();
      data += name;
      header[name] = {{"dtype", "U8"}, {"shape", {name.size()}}, {"data_offsets", {begin, data.size()}}};
    }
    write_file(dir / "one.safetensors", safetensors_bytes(header.dump(), data));
    return run_well({"inspect", (dir / "one.safetensors").string(), "--digest"}).out;
  };
  const std::string sorted = digests_of({"layers.0.w", "layers.2.w", "layers.10.w", "z"});
  CHECK(sorted.find("  layers.2.w ") < sorted.find("  layers.10.w "));
  CHECK(digests_of({"z", "layers.10.w", "layers.2.w", "layers.0.w"}) == sorted);
}

TEST_CASE("A manifest in the directory that it is of is held against the files, and one elsewhere is not") {
  const Shards shards;
  const fs::path out = shards.out;
  CHECK_THAT(run_well(shards.verify()).out, Says("same: ") && Says(" files\n"));
  const std::string text = read_file(shards.manifest);
  write_file(shards.manifest, "\xEF\xBB\xBF\n" + text);
  run_well(shards.verify());

  json edited = json::parse(text);
  edited["files"][0]["path"] = "other.json";
  edited["files"].push_back({{"path", "nope.safetensors"}, {"bytes", 5}, {"sha256", std::string(64, '0')}});
  write_file(shards.manifest, edited.dump());
  check_run(shards.verify(), 1,
            {"file missing: other.json", "file missing: nope.safetensors", "different: 0 tensors, 2 files"});
  const json document = json_of(shards.verify(), 1);
  CHECK(document.at("missing_files") == json::array({"other.json", "nope.safetensors"}));
  CHECK_FALSE(document.at("same"));
  edited["files"].erase(0);
  write_file(shards.manifest, edited.dump());
  check_run(shards.verify(), 1, "different: 0 tensors, 1 file\n");
  run_well({"verify", kModel, "--manifest", shards.manifest});  // of tensors alone

  write_file(shards.manifest, text);
  std::string config = read_file(out / "config.json");
  config.back() = ' ';
  write_file(out / "config.json", config);
  write_file(out / "more.safetensors", "x");
  const ProgramResult changed =
      check_run(shards.verify(), 1, "file differs: config.json", "does not list a file of tensors: more.safetensors");
  CHECK_THAT(changed.out, !Says("missing"));
}

TEST_CASE("A byte of a rank file's header that changed is a file that differs from its manifest") {
  const Shards shards;
  const std::string rank = "tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors";
  std::string bytes = read_file(shards.dir / "out" / rank);
  bytes.at(bytes.find("\"format\":\"pt\"") + 11) = 'x';
  write_file(shards.dir / "out" / rank, bytes);
  CHECK(check_run(shards.verify(), 1, {}).out == "file differs: " + rank + "\ndifferent: 0 tensors, 1 file\n");
}

TEST_CASE("The manifest of a single file's conversion names the file") {
  const TempDir dir;
  const std::string out = (dir / "out").string();
  run_well({"convert", kModel + "/model.safetensors", out, "--manifest", "--quiet"});
  std::vector<std::string> names;
  const json manifest = json::parse(read_file(dir / "out/reshard.manifest.json"));
  for (const json& source : manifest.at("sources")) names.push_back(source.at("path"));
  CHECK(names == std::vector<std::string>{"config.json", "model.safetensors"});
}
