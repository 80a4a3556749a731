// A model that no built-in family knows: --spec, the form that inspect --print-spec shows, and plans in config.json.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

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
  Arguments shard(const char* out, const Arguments& more) const {
    return joined({"shard", path("model"), path(out), "--no-sync"}, more);
  }
  /// Writes the description with the first `from` in it replaced.
  std::string write_spec(const std::string& from, const std::string& to) const {
    std::string text = kSpec;
    write_file(dir / "other.json", text.replace(text.find(from), from.size(), to));
    return path("other.json");
  }

  TempDir dir;
  reshard::test::TensorMap tensors;
};

}  // namespace

TEST_CASE("A model with a description of its own is sharded, shown, compared and consolidated") {
  const Mine mine;
  const std::string spec = mine.path("mine.json");
  check_fails({"shard", mine.path("model"), mine.path("shards"), "--tp", "2"}, 4, "--spec");

  run_well({"shard", mine.path("model"), mine.path("shards"), "--tp", "2", "--pp", "2", "--format", "safetensors",
            "--spec", spec});
  const reshard::test::TensorMap rank =
      read_tensors(mine.dir / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_01/model.safetensors");
  CHECK(rank.at("decoder.blocks.1.up.weight").bytes == mine.tensors.at("decoder.blocks.1.up.weight").bytes.substr(64));
  CHECK((rank.at("decoder.blocks.1.extra.weight") == mine.tensors.at("decoder.blocks.1.extra.weight")));

  run_well({"verify", mine.path("model"), mine.path("shards"), "--spec", spec});
  CHECK_THAT(run_reshard({"inspect", mine.path("shards"), "--spec", spec}).out, Says("decoder.blocks"));
  run_well({"consolidate", mine.path("shards"), mine.path("whole"), "--spec", spec});
  CHECK((read_tensors(mine.dir / "whole/model.safetensors") == mine.tensors));
  run_well(
      {"convert", mine.path("shards"), mine.path("four"), "--to", "ranks", "--tp", "4", "--pp", "1", "--spec", spec});
  run_well({"verify", mine.path("model"), mine.path("four"), "--spec", spec});
}

TEST_CASE("A built-in description is printed in the form that --spec takes") {
  const Mine mine;
  const std::string model = testdata("golden/optimum/qwen3-tp4-pp3-gqa/original").string();
  const ProgramResult print = run_well({"inspect", "--print-family", "qwen3"});
  CHECK(nlohmann::json::parse(print.out)["model_type"] == "qwen3");
  write_file(mine.dir / "qwen3.json", print.out);
  run_well({"shard", model, mine.path("a"), "--tp", "4"});
  run_well({"shard", model, mine.path("b"), "--tp", "4", "--spec", mine.path("qwen3.json")});
  CHECK((snapshot(mine.dir / "a") == snapshot(mine.dir / "b")));

  CHECK(run_reshard({"inspect", "--print-spec", "qwen3"}).out == print.out);  // its old name
  check_fails({"inspect", "--print-family", "lama"}, 2, "did you mean llama?");
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
  check_fails({"shard", path("model"), path("out"), "--tp", "2"}, 4, "--family");
  const ProgramResult chosen = run_well({"shard", path("model"), path("out"), "--tp", "2", "--family", "llama"});
  CHECK_THAT(chosen.err, !Says("describes the model_type"));
  run_well({"verify", path("model"), path("out"), "--family", "llama"});
  run_well({"consolidate", path("out"), path("back"), "--family", "llama"});
  CHECK((read_tensors(temp / "back/model.safetensors") == read_tensors(original / "model.safetensors")));
  check_fails({"shard", path("model"), path("b"), "--tp", "2", "--family", "qwen3"}, 3,
              {"not those of the family qwen3", "missing model.layers.0.self_attn.q_norm.weight"});
  const ProgramResult far = run_reshard({"shard", path("model"), path("b"), "--tp", "2", "--family", "nothing_of_it"});
  CHECK_THAT(far.err, Says("docs/families.md lists the"));
  check_fails({"shard", path("model"), path("b"), "--tp", "2", "--family", "lama"}, 2,
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
    check_fails({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec}, 3, "spec.json: line " + says);
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
  check_run(mine.shard("a", {"--tp", "2", "--spec", mine.write_spec("blocks.*.up", "blocks.*.upp")}), 3, {},
            {"the tensors are not those that --spec describes as mine: unexpected decoder.blocks.0.up.bias (did "
             "you mean decoder.blocks.0.upp.bias?); ",
             "fix the description"});
}

TEST_CASE("Column and row are the linear's, whichever way its weight is stored") {
  const TempDir temp;
  const auto path = [&](const char* name) { return (temp / name).string(); };
  write_case(family_case("llama_gptq"), temp / "model");
  run_well({"shard", path("model"), path("out"), "--tp", "2"});
  const auto report = json_of({"inspect", path("out")});
  std::map<std::string, std::string> labels;
  for (const auto& tensor : report["tensors"]) labels[tensor["name"]] = tensor["layout"];
  CHECK(labels["model.layers.0.mlp.up_proj.qweight"] == "column");
  CHECK(labels["model.layers.0.mlp.down_proj.qweight"] == "row");
  CHECK(labels["model.embed_tokens.weight"] == "column");
}

TEST_CASE("A description of another model is noted, and a mistake may be in either file") {
  const Mine mine;
  check_run(mine.shard("a", {"--tp", "2", "--spec", mine.write_spec("mine", "other")}), 0, {},
            "--spec describes the model_type \"other\"");
  write_file(mine.dir / "model/config.json", R"({"model_type": "mine", "depth": 2, "vocab": 8})");
  check_run(mine.shard("b", {"--tp", "2", "--spec", mine.path("mine.json")}), 3, {},
            {"\"dim\" is missing", "--spec and config.json do not match: correct one of them"});
}

TEST_CASE("A description that says nothing of heads gives a note where the ranks may split them") {
  const Mine mine;
  const auto notes = [&](const char* out, const char* tp, const std::string& spec) {
    return run_well(mine.shard(out, {"--tp", tp, "--spec", spec})).err;
  };
  CHECK_THAT(
      notes("a", "2", mine.path("mine.json")),
      Says("the description has neither \"attention\" nor a module with \"heads\", so it was not checked whether "
           "--tp 2 splits attention heads"));
  CHECK_THAT(notes("b", "1", mine.path("mine.json")), !Says("attention heads"));
  CHECK_THAT(notes("c", "2", mine.write_spec("\"bias\"", "\"heads\": \"dim\", \"bias\"")), !Says("attention heads"));
}

TEST_CASE("A description that does not say the stage of a module behind the layers gives a note") {
  const Mine mine;
  const std::string spec = mine.write_spec(", \"stage\": \"last\"", "");
  const auto notes = [&](const char* out, const char* pp, const std::string& file) {
    return run_well(mine.shard(out, {"--tp", "1", "--pp", pp, "--spec", file})).err;
  };
  CHECK_THAT(notes("a", "2", spec),
             Says("on the first pipeline stage, because no other stage is declared: head.weight; \"stage\": \"last\" "
                  "in the description names the modules of the last stage"));
  CHECK_THAT(notes("b", "1", spec), !Says("pipeline stage"));
  CHECK_THAT(notes("c", "2", mine.path("mine.json")), !Says("pipeline stage"));
}

TEST_CASE("A mistake in what a description joins is told with its line") {
  const TempDir temp;
  const std::string model = testdata("golden/nxdi/llama-tp4/original").string(), spec = (temp / "spec.json").string();
  const std::string llama = run_reshard({"inspect", "--print-spec", "llama"}).out;
  const Arguments shard{"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec};
  const auto refused = [&](const std::string& from, const std::string& to, const Texts& says) {
    std::string text = llama;
    write_file(spec, text.replace(text.find(from), from.size(), to));
    INFO(to);
    check_run(shard, 3, {}, says);
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
  refused("\"name\": \"model.norm\"", "\"name\": \"lm_head\"", {"line", "lm_head is listed twice"});
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
  check_fails({"shard", model, (temp / "out").string(), "--tp", "2", "--spec", spec}, 3, "\"k60\" is missing");
  std::string row = "\"defaults\": {";
  for (int i = 0; i < 5000; ++i) row += "\"k" + std::to_string(i) + "\": \"k" + std::to_string(i + 1) + "\", ";
  refused("\"defaults\": {", row, {"line", "longer chain of defaults"});
}

TEST_CASE("A mistake in a description is told with its line and key") {
  const Mine mine;
  const auto refused = [&](const std::string& from, const std::string& to, const Texts& says) {
    INFO(to);
    check_run(mine.shard("shards", {"--tp", "2", "--spec", mine.write_spec(from, to)}), 3, {}, says);
    CHECK_FALSE(fs::exists(mine.dir / "shards"));
  };
  const std::string bias = R"("bias": "always")", modules = R"("modules": [)", up = R"("4 * dim", "dim")";
  const std::string depth = R"("depth")", head = R"("vocab", "dim"], "stage": "last")";
  refused("colwise_rep", "colwize",
          {"line 8", "decoder.blocks.*.up: ", "\"plan\"", "colwize", "one of colwise", "did you mean \"colwise\"?"});
  refused(bias, R"("biass": "always")", {"line 8", "\"biass\" is not known", "did you mean \"bias\"?"});
  refused("layer % 2 == 1", "layer % 2 = 1", {"line 10", "\"when\"", "character 11"});
  refused(up, R"(-4, "dim")", {"line 8", "\"shape\" has -4", "whole number"});
  refused("decoder.blocks.*.down", "decoder.layers.*.down", {"line 9", "does not begin with \"layers\""});
  refused(depth, R"("depth +")", {"line 4", "\"num_layers\"", "ends where"});
  refused(R"("stage": "first")", R"("stage": "second")", {"line 7", "\"first\" or \"last\""});
  refused(modules, R"("modules": [], "whole": [)", {"line 6: \"modules\" is [], expected at least one module"});
  refused(modules, modules + "7,", {"line 6", "modules[0] is 7, expected an object"});
  refused(R"("defaults": {)", R"("defaults": {"dim": "dim", )", {"line 5", "depends on itself"});
  refused(R"("layers": "decoder.blocks",)", "",
          {"line 4", "\"num_layers\" is \"depth\", expected \"layers\" next to it"});
  refused(R"(["dim"],)", R"(["dim"] )", {"line 10", "not valid JSON"});
  refused(R"("shape": ["dim", "4 * dim"])", R"("shape": ["dim"])", {"line 9", "too few"});
  refused(R"("plan": "rowwise")", R"("plan": "rowwise", "packed": ["dim"])", {"line 9", "packed_colwise"});
  refused("blocks.*.down", "blocks.*.*.down", {"line 9", "2 stars"});
  refused(R"("when": "layer % 2)", R"("items": 2, "when": "layer % 2)", {"line 10", "one star", "need a second"});
  refused(modules, R"("nxd_inference": {"q_norm": "x"}, )" + modules, {"line 6", "the key \"q_norm\" is not known"});
  const std::pair<std::string, const char*> entries[] = {
      {R"j("entry": "y", "parameters": "x.weight")j", "names the parameter x.weight, which does not exist"},
      {R"j("entry": [], "parameters": "head.weight")j", "one name, or one for each of \"versions\""},
      {R"j("entry": ["a", "b"], "parameters": "head.weight")j", "one name, or one for each of \"versions\""},
      {R"j("entry": {"1": "a"}, "parameters": "head.weight")j", "the key \"1\" is not known"},
      {R"j("entry": "o.*", "parameters": "head.weight")j", "\"*\" 0 times"},
      {R"j("entry": "o", "parameters": [])j", "the name of a parameter, or no such key"},
      {R"j("entry": "o", "dims": "row in -> row in")j", "the name of a parameter, or no such key"},
      {R"j("entry": "o", "parameters": ["head.weight", "embed.weight"])j", "marked by \"+\", along which they follow"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in")j", "\"row in -> expert row in\""},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "(row in -> row in")j", "in parentheses"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row row -> row")j", "each once"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in -> row")j", "the axis in in the entry as well"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in -> (row b) in")j", "and not b"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in -> (row expert) in")j", "and not expert"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in -> (row in)")j",
       "the axis in in a dim of the entry without"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "row in -> expert row in")j",
       "no axis that head.weight has no number for"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "(a b) in -> (b a) in")j",
       "\"sizes\" for all axes of (a b) but one"},
      {R"j("entry": "o", "parameters": "head.weight", "padded": true)j", "an axis marked by \"+\""},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "r i -> i r", "sizes": {"x": 1})j",
       "x, which is no axis"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "r i -> +r i", "sizes": {"r": 1})j",
       "r, which is no axis"},
      {R"j("entry": "o", "parameters": "head.weight", "dims": "r i -> i r", "sizes": {"r": "dim"})j",
       "num_attention_heads"},
      {R"j("entry": "o", "parameters": "head.weight", "values": [])j", "the key \"values\" is not known"},
      {R"j("entry": "o", "parameters": "head.weight", "heads": "query")j", "the key \"heads\" is not known"},
      {R"j("entry": "o.0", "parameters": "head.weight")j", "\"*\" 0 times"},
      {R"j("entry": "", "parameters": "")j", "\"*\" for each number"},
      {R"j("entry": "o", "rotary": "interleaved")j", "the key \"rotary\" is not known"},
      {R"j("entry": "o", "parameters": "head.weight"}, {"entry": "p", "parameters": "head.weight")j",
       "head.weight is in another entry already"},
      {R"j("entry": "o", "parameters": "head.weight"}, {"entry": "o", "parameters": "wte.weight")j",
       "o is in another entry already"}};
  for (const auto& [entry, says] : entries)
    refused(modules, R"("other_names": [{"program": "t", "entries": [{)" + entry + "}]}], " + modules,
            {"line 6", says});
  const std::pair<std::string, const char*> of_ranks[] = {
      {R"j("values": [{"entry": "v", "value": "two"}])j", "\"expert_map\""},
      {R"j("heads": "all")j", "\"query\", \"key\", \"value\""},
      {R"j("copies": [{"dims": "row in -> row"}])j", "the axis in in the entry as well"},
      {R"j("when": "fused_qkv and")j", "fused_qkv and"}};
  for (const auto& [keys, says] : of_ranks)
    refused(modules,
            R"("nxd_inference": {"entries": [{"entry": "o", "parameters": "head.weight", )" + keys + "}]}, " + modules,
            {"line 6", says});
  const std::pair<std::string, const char*> schemes[] = {
      {R"({"t": {}})", "expected an array"},
      {R"([{"program": "", "entries": []}])", "\"program\" is \"\", expected a name"},
      {R"([{"program": "t", "versions": ["1", "1"], "entries": []}])", "labels that differ"},
      {R"([{"program": "t", "families": ["llama"], "entries": []}])", "no such key, as the scheme is for this family"},
      {R"([{"program": "t", "of_ranks": true, "entries": []}])", "\"of_ranks\" is true, expected false"},
      {R"([{"program": "t", "entries": []}, {"program": "t", "entries": []}])", "programs that differ"}};
  for (const auto& [scheme, says] : schemes)
    refused(modules, R"("other_names": )" + scheme + ", " + modules, {"line 6", says});
  refused(head, R"("vocab", "dims"], "stage": "last")",
          {"other.json: line 11: head: \"shape\" does not fit", "config.json: \"dims\" is missing",
           "did you mean \"dim\"?"});
  refused(up, R"("4 * dmi", "dim")",
          {"line 8: decoder.blocks.*.up: \"shape\"", "\"dmi\" is missing", "did you mean \"dim\"?"});
  refused("layer % 2 == 1", "layr > 0",
          {"line 10: decoder.blocks.*.extra: \"when\"", "\"layr\" is missing", "did you mean \"layer\"?"});
  refused(depth, R"("dpeth")", {"line 4: \"num_layers\" does not fit", "did you mean \"depth\"?"});
  refused(up, R"("dim / 7", "dim")", {"line 8", "\"shape\"", "4 / 7 is not a whole number"});
  refused(up, R"("dim - 100", "dim")", {"line 8", "\"shape\"", "4 - 100 is less than 0"});
  refused(bias, R"("bias": "dim")", {"line 8", "\"bias\"", "\"dim\" is 4, expected true or false"});
}
