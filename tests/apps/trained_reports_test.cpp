// What the program tells of checkpoints that training programs write, and of those that it writes for them.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "fold.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string golden_path(const std::string& path) {
  return testdata("golden/" + path).string();
}

TEST_CASE("inspect counts what lies beside a model") {
  const std::string path = golden_path("dcp/llama-fsdp2-optim/sharded");
  CHECK_THAT(
      run_reshard({"inspect", path}).out,
      Says("\nin addition to the model: 63 optimizer tensors, 197 kB; 13 objects, 12.1 kB\noptimizer: exp_avg F32 "
           "(98.6 kB), exp_avg_sq F32 "
           "(98.6 kB), step F32 (84 B); step 2\n  group 0: 21 parameters; lr 0.01, betas [0.9, 0.999], eps 1e-08, "));
  const json document = json_of({"inspect", path});
  const json states = {{{"name", "exp_avg"}, {"dtype", "F32"}, {"tensors", 21}, {"bytes", 98560}},
                       {{"name", "exp_avg_sq"}, {"dtype", "F32"}, {"tensors", 21}, {"bytes", 98560}},
                       {{"name", "step"}, {"dtype", "F32"}, {"tensors", 21}, {"bytes", 84}}};
  const json groups = document["beside_model"]["optimizer_groups"];
  REQUIRE(groups.size() == 1);
  CHECK(groups[0]["parameters"] == 21);
  CHECK(groups[0]["values"]["lr"] == 0.01);
  CHECK(groups[0]["values"]["foreach"] == nullptr);
  CHECK(document["beside_model"] == json({{"optimizer", {{"tensors", 63}, {"bytes", 197204}}},
                                          {"optimizer_states", states},
                                          {"optimizer_groups", groups},
                                          {"optimizer_step", 2.0},
                                          {"other", {{"tensors", 0}, {"bytes", 0}}},
                                          {"objects", {{"objects", 13}, {"bytes", 12064}}},
                                          {"unread_files", {{"files", 0}, {"bytes", 0}}}}));
  const json others = json_of({"inspect", golden_path("dcp/llama-nested-files/sharded")});
  CHECK(others["beside_model"]["other"]["tensors"] == 2);
  const json whole = json_of({"inspect", golden_path("dcp/llama-plain/original")});
  CHECK_FALSE(whole.contains("beside_model"));
}

TEST_CASE("inspect says why an optimizer cannot be restored or read, and what to try") {
  const std::string mixed = golden_path("zero1/optimum-llama-dp2-tp2-pp2-xser/checkpoint");
  const json states = json_of({"inspect", mixed})["beside_model"]["training_states"];
  CHECK(states["complete"] == false);
  CHECK_THAT(states["incomplete"],
             Says("ZeRO-1 shards of some data-parallel ranks were saved as if they were complete"));
  CHECK_THAT(states["hint"], Says("leave out the optimizer and its master weights; only if another program"));
  std::string text = run_reshard({"inspect", mixed}).out;
  std::replace(text.begin(), text.end(), '\n', ' ');
  CHECK_THAT(text, Says("leave out the optimizer and its master weights"));
  CHECK_THAT(text, !Says("dp_rank_01"));

  const TempDir temp;
  fs::copy(golden_path("zero1/nxd-llama-dp2-tp2/checkpoint/step_3"), temp / "run", fs::copy_options::recursive);
  fs::permissions(temp / "run/optim", fs::perms::owner_all, fs::perm_options::add);
  fs::remove(temp / "run/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt");
  const json beside = json_of({"inspect", (temp / "run").string(), "--config",
                               golden_path("zero1/nxd-llama-dp2-tp2/original")})["beside_model"];
  CHECK_THAT(beside["unreadable"], Says("is missing: dp_rank_01_tp_rank_00_pp_rank_00; copy the missing files here"));
}

/// Of each tensor that has another name in the files: that name.
std::map<std::string, std::string> stored_names(const json& document) {
  std::map<std::string, std::string> names;
  for (const json& tensor : document["tensors"])
    if (tensor.contains("stored_as")) names[tensor["name"]] = tensor["stored_as"];
  return names;
}

TEST_CASE("inspect tells the whole names that entries have, and shows layers as one all the same") {
  const std::string prefixed = golden_path("dcp/llama-fsdp2-optim/sharded");
  const auto under_model = stored_names(json_of({"inspect", prefixed}));
  CHECK(under_model.size() == 21);
  for (const auto& [name, stored] : under_model) CHECK(stored == "model." + name);
  const std::string table = run_reshard({"inspect", prefixed}).out;
  CHECK_THAT(table, Says("\nmodel.layers.{0..1}.mlp.down_proj.weight "));
  CHECK_THAT(table, !Says("model.layers.1."));

  const std::string titan = golden_path("dcp/titan-llama3-v0.2.2/sharded");
  const std::string config = golden_path("dcp/titan-llama3-v0.2.2/original");
  const auto translated = stored_names(json_of({"inspect", titan, "--config", config}));
  CHECK(translated.at("model.layers.1.self_attn.q_proj.weight") == "layers.1.attention.wq.weight");
  CHECK(translated.at("model.norm.weight") == "norm.weight");
  const std::string shown = run_reshard({"inspect", titan, "--config", config}).out;
  CHECK_THAT(shown, Says("\nmodel.layers.{0..1}.self_attn.q_proj.weight "));
  CHECK_THAT(shown, !Says("stored as"));
}

TEST_CASE("A dry run shows no rank's file that is not written") {
  const TempDir temp;
  const std::string model = golden_path("dcp/titan-llama3-v0.2.2/original"), out = (temp / "out").string();
  const Arguments arguments{"shard", model, out, "--layout", "dcp", "--fsdp", "8", "--tp", "2", "--dry-run"};
  const std::string table = run_reshard(arguments).out;
  std::map<std::uint64_t, std::vector<std::uint64_t>> ranks_by_bytes;
  const json document = json_of(arguments);
  for (const json& file : document["files"])
    if (file["kind"] == "weights") {
      const std::string path = file["path"];
      ranks_by_bytes[file["bytes"]].push_back(std::stoull(path.substr(2)));
    }
  INFO(table);
  CHECK(ranks_by_bytes.size() > 1);
  for (const auto& [bytes, ranks] : ranks_by_bytes)
    CHECK_THAT(table, Says("\n__" + cli::number_set(ranks) + "_0.distcp "));
}

TEST_CASE("inspect and verify note that a --config is another model's") {
  const std::string path = golden_path("dcp/llama-fsdp2-optim/sharded");
  const std::string own = golden_path("dcp/llama-fsdp2-optim/original");
  const std::string other = golden_path("dcp/llama-plain/original");
  const std::string other_type = golden_path("dcp/qwen3-fsdp2-r4/original");
  CHECK_THAT(run_reshard({"inspect", path, "--config", own}).err, !Says("another model"));
  for (const std::string& config : {other, other_type}) {
    const ProgramResult result = run_well({"inspect", path, "--config", config});
    const std::string note = config + "/config.json seems to belong to another model: ";
    CHECK_THAT(result.err, Says(note));
    CHECK_THAT(run_reshard({"verify", path, path, "--config", config}).err, Says(note));
  }
}

TEST_CASE("inspect notes that the last pipeline stage is missing, where config.json alone shows it") {
  const TempDir temp;
  const fs::path golden = testdata("golden/zero1/nxd-llama-dp4-tp2-pp2");
  const fs::path model = temp / "step_3" / "model";
  fs::create_directories(model.parent_path());
  fs::copy(golden / "checkpoint" / "step_3" / "model", model, fs::copy_options::recursive);
  fs::copy(golden / "original" / "config.json", temp / "step_3");
  const std::string note = "the checkpoint is incomplete, or config.json belongs to another model";
  CHECK_THAT(run_well({"inspect", (temp / "step_3").string()}).err, !Says(note));
  for (const char* rank : {"dp_rank_00_tp_rank_00_pp_rank_01.pt", "dp_rank_00_tp_rank_01_pp_rank_01.pt"})
    REQUIRE(fs::remove(model / rank));
  const std::string err = run_well({"inspect", (temp / "step_3").string()}).err;
  CHECK_THAT(err, Says(note));
  CHECK_THAT(err, Says("11 tensors that config.json asks for are missing: model.layers.1."));
}

TEST_CASE("Outputs that may not be replaced are an error without notes on what becomes of tensors") {
  const TempDir temp;
  const std::string source = golden_path("dcp/llama-fsdp2-optim/sharded"), out = (temp / "out").string();
  const std::vector<std::string> command{"convert", source, out};
  check_run(command, 0, {}, "63 tensors of optimizer state (197 kB) are left out");
  const ProgramResult refused = check_run(command, 3, {}, "--force");
  CHECK_THAT(refused.err, !Says("note:"));
}

TEST_CASE("A job's document has the layout with the options that were given, and what goes along with a model") {
  const TempDir temp;
  const std::string source = golden_path("dcp/llama-fsdp2-optim/sharded"), out = (temp / "out").string();
  const auto document = [&](const Arguments& options) {
    return json_of(joined({"convert", source, out, "--dry-run"}, options));
  };
  const json trained =
      document({"--to", "dcp", "--fsdp", "3", "--names", "hf", "--prefix", "model", "--with-optimizer"});
  CHECK(trained["layout"] == "dcp");
  CHECK(trained["options"] == json({{"fsdp", 3}, {"names", "hf"}, {"prefix", "model"}}));
  CHECK(trained["states"]["entries"] == 76);
  CHECK(trained["states"]["bytes"] > 197204);
  const json whole = document({"--max-shard-size", "1MB"});
  CHECK(whole["layout"] == "hf");
  CHECK(whole["options"] == json({{"max-shard-size", 1000000}}));
  CHECK_FALSE(whole.contains("states"));
}

TEST_CASE("A dry run says over how many ranks FSDP spreads a checkpoint") {
  const TempDir temp;
  const std::string model = golden_path("dcp/titan-llama3-v0.2.2/original"), out = (temp / "out").string();
  const auto planned = [&](const Arguments& options) {
    return run_reshard(joined({"shard", model, out, "--layout", "dcp", "--dry-run"}, options)).out;
  };
  CHECK_THAT(planned({"--fsdp", "4", "--tp", "2"}), Says("\nmesh      fsdp 4 × tp 2\n"));
  CHECK_THAT(planned({"--fsdp", "3"}), Says("\nmesh      fsdp 3\n"));
  CHECK(json::parse(planned({"--fsdp", "3", "--json"}))["mesh"]["fsdp"] == 3);
  CHECK_FALSE(json_of({"shard", model, out, "--tp", "2", "--dry-run"})["mesh"].contains("fsdp"));
}

TEST_CASE("A prefix that a training run has is named where its model would be written without") {
  const TempDir temp;
  const std::string run = golden_path("dcp/llama-fsdp2-optim/sharded"), out = (temp / "out").string();
  const Arguments command{"convert", run, out, "--to", "dcp", "--with-optimizer", "--dry-run"};
  CHECK_THAT(
      run_reshard(command).err,
      Says("removed the prefix model. of the training run from the model's names; to keep it, set --prefix model."));
  CHECK_THAT(run_reshard(joined(command, {"--prefix", "model"})).err, !Says("removed the prefix"));
}

TEST_CASE("Weights that are float32 where config.json says bfloat16 are noted, unless --dtype is given") {
  const TempDir temp;
  const std::string source = golden_path("dcp/titan-llama3-v0.2.2/sharded");
  const std::string config = golden_path("dcp/titan-llama3-v0.2.2/original"), out = (temp / "out").string();
  const auto notes = [&](const Arguments& more) {
    return run_well(joined({more[0], source, out, "--config", config, "--dry-run"}, {more.begin() + 1, more.end()}))
        .err;
  };
  for (const char* command : {"consolidate", "convert"}) {
    CHECK_THAT(
        notes({command}),
        Says("21 tensors are float32, as in training, although config.json has bfloat16: --dtype bfloat16 casts them"));
    CHECK_THAT(notes({command, "--dtype", "bfloat16"}), !Says("as in training"));
  }
  CHECK_THAT(notes({"convert", "--to", "dcp"}), !Says("as in training"));
}

TEST_CASE("The few parameters that a model has in float32 are not noted as weights in training") {
  const TempDir temp;
  const std::string original = golden_path("experts/deepseek_v3/original"), dcp = (temp / "dcp").string();
  run_well({"convert", original, dcp, "--to", "dcp"});
  const std::string err = run_well({"convert", dcp, (temp / "out").string(), "--to", "hf"}).err;
  CHECK_THAT(err, !Says("float32"));
  run_well({"verify", original, (temp / "out").string()});
}

TEST_CASE("A run goes to another mesh by the command line, with a manifest, and verify compares its optimizer") {
  const TempDir temp;
  const std::string source = golden_path("dcp/llama-fsdp2-optim/sharded");
  const std::string config = golden_path("dcp/llama-fsdp2-optim/original");
  const std::string out = (temp / "out").string(), alone = (temp / "alone").string();
  const auto with = [&](const std::string& output, const Arguments& more) {
    return run_reshard(joined(
        {"shard", source, output, "--config", config, "--layout", "dcp", "--fsdp", "3", "--prefix", "model"}, more));
  };
  CHECK_THAT(with(out, {"--with-optimizer", "--dry-run"}).out, Says("with 76 entries of the training run"));
  CHECK(with(out, {"--with-optimizer", "--manifest", "--resume"}).exit_code == 0);
  CHECK_THAT(run_reshard({"verify", source, out, "--with-optimizer"}).out, Says("same: 86 tensors"));
  CHECK_THAT(run_reshard({"verify", source, out}).out, Says("same: 21 tensors"));
  const std::string manifest = out + "/reshard.manifest.json";
  for (const std::string& checked : {source, out}) {
    const ProgramResult whole = run_reshard({"verify", checked, "--manifest", manifest, "--with-optimizer"});
    CHECK_THAT(whole.out, Says("same: 97 tensors"));
    CHECK_THAT(whole.err, !Says("not compared"));
    const ProgramResult model = run_well({"verify", checked, "--manifest", manifest});
    CHECK(model.out == std::string("same: 21 tensors, 98.6 kB") + (checked == out ? ", 5 files\n" : "\n"));
    CHECK_THAT(model.err, Says("note: the manifest has 76 entries of training state, which are not "
                               "compared: --with-optimizer compares them\n"));
  }

  const auto without = with(alone, {});
  CHECK_THAT(without.err, Says("--with-optimizer includes its optimizer"));
  check_run({"verify", source, alone, "--with-optimizer"}, 1,
            "only in " + source + ": optim.state.model.embed_tokens.weight.exp_avg\n");
  check_run({"verify", alone, config, "--with-optimizer"}, 2, {},
            "--with-optimizer has no effect: neither A nor B has states of an optimizer");
  CHECK(run_reshard({"convert", source, (temp / "hf").string(), "--to", "hf", "--with-optimizer"}).exit_code == 2);
  const std::string same = (temp / "same").string();
  const ProgramResult stays = run_reshard({"convert", out, same, "--with-optimizer"});  // in its layout
  INFO(stays.err);
  CHECK(stays.exit_code == 0);
  CHECK_THAT(run_reshard({"verify", out, same, "--with-optimizer"}).out, Says("same: 86 tensors"));
  CHECK_THAT(run_reshard({"inspect", same}).out, Says("(dcp, "));
  CHECK(run_reshard({"convert", config, (temp / "hf").string(), "--with-optimizer"}).exit_code == 2);
}

}  // namespace
}  // namespace reshard::test
