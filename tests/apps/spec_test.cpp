// A model that no built-in family knows: --spec, the form that inspect --print-spec shows, and plans in config.json.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

const char* const kSpec = R"({
  "model_type": "mine",
  "layers": "decoder.blocks",
  "num_layers": "depth",
  "defaults": {"tie_word_embeddings": false},
  "modules": [
    {"name": "wte", "plan": "embedding_rowwise", "shape": ["vocab", "dim"], "stage": "first"},
    {"name": "decoder.blocks.*.up", "plan": "colwise_rep", "shape": ["4 * dim", "dim"], "bias": "always"},
    {"name": "decoder.blocks.*.down", "plan": "rowwise", "shape": ["dim", "4 * dim"]},
    {"name": "decoder.blocks.*.extra", "plan": "replicate", "shape": ["dim"], "when": "layer % 2 == 1"},
    {"name": "head", "plan": "colwise", "shape": ["vocab", "dim"], "stage": "last"}
  ]
}
)";

/// A model of the description, of two layers.
struct Mine {
  Mine() {
    fs::create_directories(dir / "model");
    write_file(dir / "model/config.json", R"({"model_type": "mine", "depth": 2, "dim": 4, "vocab": 8})");
    write_file(dir / "mine.json", kSpec);
    const auto tensor = [&](const std::string& name, const reshard::Dims& shape) {
      std::uint64_t elems = 1;
      for (const std::uint64_t size : shape) elems *= size;
      std::string bytes;
      for (std::uint64_t i = 0; i < 2 * elems; ++i) bytes += static_cast<char>(i * 7 + name.size());
      tensors[name] = {reshard::DType::kBF16, shape, bytes};
    };
    tensor("wte.weight", {8, 4});
    for (const std::string layer : {"0", "1"}) {
      tensor("decoder.blocks." + layer + ".up.weight", {16, 4});
      tensor("decoder.blocks." + layer + ".up.bias", {16});
      tensor("decoder.blocks." + layer + ".down.weight", {4, 16});
    }
    tensor("decoder.blocks.1.extra.weight", {4});
    tensor("head.weight", {8, 4});
    write_safetensors(dir / "model/model.safetensors", tensors);
  }

  std::string path(const char* name) const { return (dir / name).string(); }

  TempDir dir;
  reshard::test::TensorMap tensors;
};

}  // namespace

TEST_CASE("A model with a description of its own is sharded, shown, compared and consolidated") {
  const Mine mine;
  const std::string spec = mine.path("mine.json");
  check_failed(run_reshard({"shard", mine.path("model"), mine.path("shards"), "--tp", "2"}), 4, "--spec");

  const ProgramResult shard =
      run_reshard({"shard", mine.path("model"), mine.path("shards"), "--tp", "2", "--pp", "2", "--spec", spec});
  INFO(shard.err);
  REQUIRE(shard.exit_code == 0);
  const reshard::test::TensorMap rank =
      read_tensors(mine.dir / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_01/model.safetensors");
  CHECK(rank.at("decoder.blocks.1.up.weight").bytes == mine.tensors.at("decoder.blocks.1.up.weight").bytes.substr(64));
  CHECK((rank.at("decoder.blocks.1.extra.weight") == mine.tensors.at("decoder.blocks.1.extra.weight")));

  CHECK(run_reshard({"verify", mine.path("model"), mine.path("shards"), "--spec", spec}).exit_code == 0);
  CHECK_THAT(run_reshard({"inspect", mine.path("shards"), "--spec", spec}).out, Says("decoder.blocks"));
  REQUIRE(run_reshard({"consolidate", mine.path("shards"), mine.path("whole"), "--spec", spec}).exit_code == 0);
  CHECK((read_tensors(mine.dir / "whole/model.safetensors") == mine.tensors));
  REQUIRE(run_reshard({"convert", mine.path("shards"), mine.path("four"), "--to", "ranks", "--tp", "4", "--pp", "1",
                       "--spec", spec})
              .exit_code == 0);
  CHECK(run_reshard({"verify", mine.path("model"), mine.path("four"), "--spec", spec}).exit_code == 0);
}

TEST_CASE("A model whose config.json has a plan is sharded, shown, compared and consolidated without a description") {
  const Mine mine;
  write_file(mine.dir / "model/config.json", R"({
    "model_type": "mine",
    "base_model_tp_plan": {"decoder.blocks.*.up": "colwise", "decoder.blocks.*.down": "rowwise", "head": "colwise_rep"},
    "base_model_pp_plan": {"wte": [["input_ids"], ["embeds"]], "decoder.blocks": [["hidden"], ["hidden"]],
                           "head": [["hidden"], ["logits"]]}})");
  const ProgramResult shard =
      run_reshard({"shard", mine.path("model"), mine.path("shards"), "--tp", "2", "--pp", "2", "--no-sync"});
  INFO(shard.err);
  REQUIRE(shard.exit_code == 0);
  CHECK_THAT(shard.err, Says("the model_type \"mine\" is not known; the plan in config.json"));
  const fs::path ranks = mine.dir / "shards/tensor_parallel_shards";
  const reshard::test::TensorMap first = read_tensors(ranks / "tp_rank_01_pp_rank_00/model.safetensors");
  CHECK((first.at("wte.weight") == mine.tensors.at("wte.weight")));
  CHECK(first.at("decoder.blocks.0.down.weight").shape == reshard::Dims{4, 8});
  const reshard::test::TensorMap last = read_tensors(ranks / "tp_rank_01_pp_rank_01/model.safetensors");
  CHECK(last.at("head.weight").bytes == mine.tensors.at("head.weight").bytes.substr(32));

  CHECK(run_reshard({"verify", mine.path("model"), mine.path("shards")}).exit_code == 0);
  const ProgramResult inspect = run_reshard({"inspect", mine.path("shards"), "--tensors"});
  CHECK_THAT(inspect.out, Says("decoder.blocks.1.extra"));
  CHECK_THAT(inspect.err, Says("the plan in config.json"));
  REQUIRE(run_reshard({"consolidate", mine.path("shards"), mine.path("whole"), "--no-sync"}).exit_code == 0);
  CHECK((read_tensors(mine.dir / "whole/model.safetensors") == mine.tensors));
  check_failed(run_reshard({"shard", mine.path("model"), mine.path("b"), "--tp", "3"}), 2,
               "TP degrees that work for this model: 1, 2, 4");
}

TEST_CASE("A built-in description is printed in the form that --spec takes") {
  const Mine mine;
  const std::string model = testdata("golden/optimum/qwen3-tp4-pp3-gqa/original").string();
  const ProgramResult print = run_reshard({"inspect", "--print-family", "qwen3"});
  REQUIRE(print.exit_code == 0);
  CHECK(nlohmann::json::parse(print.out)["model_type"] == "qwen3");
  write_file(mine.dir / "qwen3.json", print.out);
  REQUIRE(run_reshard({"shard", model, mine.path("a"), "--tp", "4"}).exit_code == 0);
  REQUIRE(run_reshard({"shard", model, mine.path("b"), "--tp", "4", "--spec", mine.path("qwen3.json")}).exit_code == 0);
  CHECK((snapshot(mine.dir / "a") == snapshot(mine.dir / "b")));

  CHECK(run_reshard({"inspect", "--print-spec", "qwen3"}).out == print.out);  // its old name
  check_failed(run_reshard({"inspect", "--print-family", "lama"}), 2, "did you mean llama?");
  CHECK(run_reshard({"inspect"}).exit_code == 2);
}

TEST_CASE("A built-in family is taken with --family for a model of another name") {
  const TempDir temp;
  const fs::path original = testdata("golden/nxdi/llama-tp4/original");
  const auto path = [&](const char* name) { return (temp / name).string(); };
  fs::copy(original, temp / "model");
  nlohmann::json config = nlohmann::json::parse(read_file(original / "config.json"));
  config["model_type"] = "unheard_of";
  write_file(temp / "model/config.json", config.dump());
  check_failed(run_reshard({"shard", path("model"), path("out"), "--tp", "2"}), 4, "--family");
  const ProgramResult chosen = run_reshard({"shard", path("model"), path("out"), "--tp", "2", "--family", "llama"});
  INFO(chosen.err);
  REQUIRE(chosen.exit_code == 0);
  CHECK_THAT(chosen.err, !Says("describes the model_type"));
  REQUIRE(run_reshard({"verify", path("model"), path("out"), "--family", "llama"}).exit_code == 0);
  REQUIRE(run_reshard({"consolidate", path("out"), path("back"), "--family", "llama"}).exit_code == 0);
  CHECK((read_tensors(temp / "back/model.safetensors") == read_tensors(original / "model.safetensors")));
  check_failed(run_reshard({"shard", path("model"), path("b"), "--tp", "2", "--family", "qwen3"}), 3,
               {"not those of the family qwen3", "missing model.layers.0.self_attn.q_norm.weight"});
  const ProgramResult far = run_reshard({"shard", path("model"), path("b"), "--tp", "2", "--family", "nothing_of_it"});
  CHECK_THAT(far.err, Says("docs/families.md lists the"));
  check_failed(run_reshard({"shard", path("model"), path("b"), "--tp", "2", "--family", "lama"}), 2,
               {"--family: the family \"lama\" is not known", "did you mean llama?"});
  const ProgramResult both =
      run_reshard({"shard", path("model"), path("b"), "--tp", "2", "--family", "llama", "--spec", "x"});
  CHECK(both.exit_code == 2);
}

TEST_CASE("A mistake in a description that is like a family is told with its line") {
  const TempDir temp;
  const std::string model = testdata("golden/nxdi/llama-tp4/original").string(), spec = (temp / "spec.json").string();
  const auto refused = [&](const std::string& changes, const std::string& says) {
    write_file(spec, "{\"model_type\": \"mine\",\n \"like\": \"llama\",\n" + changes + "}");
    check_failed(run_reshard({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec}), 3,
                 "spec.json: line " + says);
  };
  refused(R"("modules": [{"name": "model.norm", "stage": "last"},
 {"name": "model.layers.*.mlp.up_proj", "plan": "colwize"}])",
          "4: model.layers.*.mlp.up_proj: \"plan\" is \"colwize\"");
  refused(R"("modules": [{"name": "model.layers.*.a", "plan": "replicate", "shape": ["1"], "when": "layer == 0"},
 {"name": "model.layers.*.a", "plan": "colwize", "shape": ["2"], "when": "layer > 0"}])",
          "4: model.layers.*.a: \"plan\" is \"colwize\"");
  refused(R"("modules": [{"name": "model.layers.*.mlp.up_prj", "plan": "colwise"}])",
          "3: the family \"llama\" has no module model.layers.*.mlp.up_prj to change");
  refused(R"("defaults": null)", "3: \"defaults\" is null, expected an object");
  refused(R"("remove": ["nothing"])", "3: \"remove\": no module has \"nothing\"");
  refused(R"("rename": {"mlp": "ffn",
 "nothing": "it"})",
          "4: \"rename\": no module has \"nothing\"");
  refused(R"("define": {"a": "1",
 "b": "2 +"})",
          "4: define: \"b\"");
  refused(R"("defines": {})", "3: the key \"defines\" is not known");
  refused(R"("fused": [{"module": "model.layers.*.mlp", "name": "all", "linears": ["gate_proj"]}])",
          "3: \"linears\" of all are not several");
  // What is wrong with the other family's modules after the changes.
  refused(R"("attention": {"output": "q_proj"})", "3: ");
  write_file(spec, R"({"model_type": "mine", "like": "llama", "modules": [{"name": "model.nrom", "stage": "last"}]})");
  CHECK_THAT(run_reshard({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec}).err,
             Says("did you mean model.norm?"));
  write_file(spec, R"({"model_type": "mine", "like": "lama"})");
  const ProgramResult typo = run_reshard({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec});
  CHECK_THAT(typo.err, Says("line 1: \"like\" names the family \"lama\"") && Says("did you mean \"llama\"?"));
}

TEST_CASE("Tensors that a description does not fit are told as its misfits") {
  const Mine mine;
  std::string other = kSpec;
  other.replace(other.find("blocks.*.up"), 11, "blocks.*.upp");
  write_file(mine.dir / "other.json", other);
  const ProgramResult misfit =
      run_reshard({"shard", mine.path("model"), mine.path("a"), "--tp", "2", "--spec", mine.path("other.json")});
  CHECK(misfit.exit_code == 3);
  CHECK_THAT(misfit.err,
             Says("the tensors are not those that --spec describes as mine: unexpected decoder.blocks.0.up.bias (did "
                  "you mean decoder.blocks.0.upp.bias?); "));
  CHECK_THAT(misfit.err, Says("mend the description"));
}

TEST_CASE("Column and row are the linear's, whichever way its weight is stored") {
  const TempDir temp;
  const auto path = [&](const char* name) { return (temp / name).string(); };
  write_case(family_case("llama_gptq"), temp / "model");
  REQUIRE(run_reshard({"shard", path("model"), path("out"), "--tp", "2"}).exit_code == 0);
  const ProgramResult result = run_reshard({"inspect", path("out"), "--json"});
  const auto report = nlohmann::json::parse(result.out);
  std::map<std::string, std::string> labels;
  for (const auto& tensor : report["tensors"]) labels[tensor["name"]] = tensor["layout"];
  CHECK(labels["model.layers.0.mlp.up_proj.qweight"] == "column");
  CHECK(labels["model.layers.0.mlp.down_proj.qweight"] == "row");
  CHECK(labels["model.embed_tokens.weight"] == "column");
}

TEST_CASE("A description of another model is noted, and a mistake may be in either file") {
  const Mine mine;
  std::string other = kSpec;
  other.replace(other.find("mine"), 4, "other");
  write_file(mine.dir / "other.json", other);
  const ProgramResult noted =
      run_reshard({"shard", mine.path("model"), mine.path("a"), "--tp", "2", "--spec", mine.path("other.json")});
  CHECK(noted.exit_code == 0);
  CHECK_THAT(noted.err, Says("--spec describes the model_type \"other\""));
  write_file(mine.dir / "model/config.json", R"({"model_type": "mine", "depth": 2, "vocab": 8})");
  const ProgramResult missing =
      run_reshard({"shard", mine.path("model"), mine.path("b"), "--tp", "2", "--spec", mine.path("mine.json")});
  CHECK(missing.exit_code == 3);
  CHECK_THAT(missing.err, Says("\"dim\" is missing"));
  CHECK_THAT(missing.err, Says("--spec and config.json do not fit: correct one of the two"));
}

TEST_CASE("A description that says nothing of heads gives a note where the ranks may split them") {
  const Mine mine;
  const auto shard = [&](const char* out, const char* tp, const char* spec) {
    const ProgramResult result =
        run_reshard({"shard", mine.path("model"), mine.path(out), "--tp", tp, "--spec", mine.path(spec)});
    REQUIRE(result.exit_code == 0);
    return result.err;
  };
  CHECK_THAT(shard("a", "2", "mine.json"), Says("the description has neither \"attention\" nor a module with "
                                                "\"heads\", so it was not checked whether --tp 2 splits attention "
                                                "heads"));
  CHECK_THAT(shard("b", "1", "mine.json"), !Says("attention heads"));
  std::string with_heads = kSpec;
  with_heads.replace(with_heads.find("\"bias\""), 0, "\"heads\": \"dim\", ");
  write_file(mine.dir / "heads.json", with_heads);
  CHECK_THAT(shard("c", "2", "heads.json"), !Says("attention heads"));
}

TEST_CASE("A description that does not say the stage of a module behind the layers gives a note") {
  const Mine mine;
  std::string spec = kSpec;
  const std::string stage = ", \"stage\": \"last\"";
  spec.replace(spec.find(stage), stage.size(), "");
  write_file(mine.dir / "wrong.json", spec);
  const auto shard = [&](const char* out, const char* pp, const char* file) {
    const ProgramResult result =
        run_reshard({"shard", mine.path("model"), mine.path(out), "--tp", "1", "--pp", pp, "--spec", mine.path(file)});
    REQUIRE(result.exit_code == 0);
    return result.err;
  };
  CHECK_THAT(shard("a", "2", "wrong.json"), Says("on the first pipeline stage, as nothing says another: head.weight; "
                                                 "\"stage\": \"last\" in the description names those of the last"));
  CHECK_THAT(shard("b", "1", "wrong.json"), !Says("pipeline stage"));
  CHECK_THAT(shard("c", "2", "mine.json"), !Says("pipeline stage"));
}

TEST_CASE("A mistake in what a description joins is told with its line") {
  const TempDir temp;
  const std::string model = testdata("golden/nxdi/llama-tp4/original").string(), spec = (temp / "spec.json").string();
  const std::string llama = run_reshard({"inspect", "--print-spec", "llama"}).out;
  const auto refused = [&](const std::string& from, const std::string& to, const std::vector<std::string>& says) {
    std::string text = llama;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    write_file(spec, text);
    const ProgramResult result = run_reshard({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec});
    INFO(to << "\n" << result.err);
    CHECK(result.exit_code == 3);
    for (const std::string& part : says) {
      CAPTURE(part);
      CHECK_THAT(result.err, Says(part));
    }
  };
  refused("[\"gate_proj\", \"up_proj\"]", "[]", {"spec.json", "line", "\"linears\" of gate_up_proj"});
  refused("[\"gate_proj\", \"up_proj\"]", "[\"up_proj\", \"up_proj\"]", {"line", "several different ones"});
  refused("[\"gate_proj\", \"up_proj\"]", "[\"gate_proj\", \"down_proj\"]",
          {"line", "down_proj needs the plan colwise"});
  refused("\"name\": \"gate_up_proj\"", "\"name\": \"down_proj\"",
          {"line", "cannot be called model.layers.*.mlp.down_proj"});
  refused("\"fused\": \"qkv_proj\"", "\"fused\": \"q_proj\"",
          {"line", "cannot be called model.layers.*.self_attn.q_proj"});
  refused("q_proj\", \"plan\": \"colwise\"", "q_proj\", \"plan\": \"replicate\"",
          {"line", "q_proj needs the plan colwise"});
  refused("o_proj\", \"plan\": \"rowwise\"", "o_proj\", \"plan\": \"colwise\"",
          {"line", "o_proj needs the plan rowwise"});
  refused("\"name\": \"model.norm\"", "\"name\": \"lm_head\"", {"line", "lm_head is there twice"});
  refused("\"tied_to\": \"model.embed_tokens\"", "\"tied_to\": \"lm_head\"", {"line", "names itself"});
  refused("gate_proj\", \"plan\": \"colwise\", \"shape\": [\"intermediate_size\", \"hidden_size\"]",
          "gate_proj\", \"plan\": \"colwise\", \"shape\": [\"intermediate_size\", \"2 * hidden_size\"]", {"gate_proj"});
  std::string many = "\"defaults\": {";  // 2^60 ways to the one that is missing
  for (int i = 0; i < 60; ++i)
    many += "\"k" + std::to_string(i) + "\": \"k" + std::to_string(i + 1) + " * k" + std::to_string(i + 1) + "\", ";
  const std::string plain = "\"defaults\": {";
  std::string text = llama;
  text.replace(text.find(plain), plain.size(), many);
  const std::string shape = "[\"vocab_size\", ";
  text.replace(text.find(shape), shape.size(), "[\"vocab_size * k0\", ");
  write_file(spec, text);
  check_failed(run_reshard({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec}), 3,
               "\"k60\" is missing");
  std::string row = "\"defaults\": {";
  for (int i = 0; i < 5000; ++i) row += "\"k" + std::to_string(i) + "\": \"k" + std::to_string(i + 1) + "\", ";
  refused("\"defaults\": {", row, {"line", "longer row of defaults"});
}

TEST_CASE("A mistake in a description is told with its line and key") {
  const Mine mine;
  struct Mistake {
    const char* from;
    const char* to;
    std::vector<std::string> says;
  };
  const Mistake mistakes[] = {
      {"colwise_rep",
       "colwize",
       {"line 8", "decoder.blocks.*.up: ", "\"plan\"", "colwize", "one of colwise", "did you mean \"colwise\"?"}},
      {"\"bias\": \"always\"", "\"biass\": \"always\"", {"line 8", "\"biass\" is not known", "did you mean \"bias\"?"}},
      {"layer % 2 == 1", "layer % 2 = 1", {"line 10", "\"when\"", "character 11"}},
      {"\"4 * dim\", \"dim\"", "-4, \"dim\"", {"line 8", "\"shape\" has -4", "whole number"}},
      {"decoder.blocks.*.down", "decoder.layers.*.down", {"line 9", "does not begin with \"layers\""}},
      {"\"depth\"", "\"depth +\"", {"line 4", "\"num_layers\"", "ends where"}},
      {"\"stage\": \"first\"", "\"stage\": \"second\"", {"line 7", "\"first\" or \"last\""}},
      {"\"modules\": [", "\"modules\": [], \"whole\": [", {"line 6: \"modules\" is [], expected at least one module"}},
      {"\"modules\": [", "\"modules\": [7,", {"line 6", "modules[0] is 7, expected an object"}},
      {"\"defaults\": {", "\"defaults\": {\"dim\": \"dim\", ", {"line 5", "depends on itself"}},
      {"\"layers\": \"decoder.blocks\",",
       "",
       {"line 4", "\"num_layers\" is \"depth\", expected \"layers\" next to it"}},
      {"[\"dim\"],", "[\"dim\"] ", {"line 10", "not valid JSON"}},
      {"\"shape\": [\"dim\", \"4 * dim\"]", "\"shape\": [\"dim\"]", {"line 9", "too few"}},
      {"\"plan\": \"rowwise\"", "\"plan\": \"rowwise\", \"packed\": [\"dim\"]", {"line 9", "packed_colwise"}},
      {"blocks.*.down\"", "blocks.*.*.down\"", {"line 9", "2 stars"}},
      {"\"when\": \"layer % 2", "\"items\": 2, \"when\": \"layer % 2", {"line 10", "one star", "need a second"}},
      {"\"modules\": [", "\"nxd_inference\": {}, \"modules\": [", {"line 6", "\"attention\" beside it"}},
      {"\"modules\": [",
       "\"other_names\": {\"t\": {\"parameters\": {\"x.weight\": \"y\"}}}, \"modules\": [",
       {"line 6", "names the parameter x.weight, which is not there"}},
      {"\"modules\": [",
       "\"other_names\": {\"t\": {\"parameters\": {\"head.weight\": []}}}, \"modules\": [",
       {"line 6", "at least one name"}},
      {"\"modules\": [",
       "\"other_names\": {\"t\": {\"parameters\": {\"head.weight\": [\"a\", \"b\"]}}}, \"modules\": [",
       {"line 6", "one name, or one of each of \"versions\""}},
      {"\"modules\": [",
       "\"other_names\": {\"t\": {\"parameters\": {\"head.weight\": \"o.*\"}}}, \"modules\": [",
       {"line 6", "names with its stars"}},
      {"\"modules\": [",
       "\"other_names\": {\"t\": {\"parameters\": {\"head.weight\": {\"name\": \"o\", \"rotary\": \"x\"}}}}, "
       "\"modules\": [",
       {"line 6", "\"interleaved\""}},
      {"\"vocab\", \"dim\"], \"stage\": \"last\"",
       "\"vocab\", \"dims\"], \"stage\": \"last\"",
       {"wrong.json: line 11: head: \"shape\" does not fit", "config.json: \"dims\" is missing",
        "did you mean \"dim\"?"}},
      {"\"4 * dim\", \"dim\"",
       "\"4 * dmi\", \"dim\"",
       {"line 8: decoder.blocks.*.up: \"shape\"", "\"dmi\" is missing", "did you mean \"dim\"?"}},
      {"layer % 2 == 1",
       "layr > 0",
       {"line 10: decoder.blocks.*.extra: \"when\"", "\"layr\" is missing", "did you mean \"layer\"?"}},
      {"\"depth\"", "\"dpeth\"", {"line 4: \"num_layers\" does not fit", "did you mean \"depth\"?"}},
      {"\"4 * dim\", \"dim\"", "\"dim / 7\", \"dim\"", {"line 8", "\"shape\"", "4 / 7 is not a whole number"}},
      {"\"4 * dim\", \"dim\"", "\"dim - 100\", \"dim\"", {"line 8", "\"shape\"", "4 - 100 is less than 0"}},
      {"\"bias\": \"always\"", "\"bias\": \"dim\"", {"line 8", "\"bias\"", "\"dim\" is 4, expected true or false"}}};
  for (const Mistake& mistake : mistakes) {
    std::string text = kSpec;
    const std::size_t at = text.find(mistake.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string(mistake.from).size(), mistake.to);
    write_file(mine.dir / "wrong.json", text);
    const ProgramResult result =
        run_reshard({"shard", mine.path("model"), mine.path("shards"), "--tp", "2", "--spec", mine.path("wrong.json")});
    INFO(mistake.to << "\n" << result.err);
    CHECK(result.exit_code == 3);
    for (const std::string& part : mistake.says) {
      CAPTURE(part);
      CHECK_THAT(result.err, Says(part));
    }
    CHECK_FALSE(fs::exists(mine.dir / "shards"));
  }
}
