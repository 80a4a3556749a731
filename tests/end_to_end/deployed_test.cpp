// Weights for inference whose tensors have other names or more elements than the checkpoint's: the layout nxdi, and
// presharded with --pad. testdata/golden/nxdi is what NxD Inference's own classes have made.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/convert.h"
#include "reshard/specs/family/family_parser.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("Replicated key/value heads that config.json counts as heads of their own are noticed") {
  for (const char* name : {"nxdi", "vllm"})
    for (const bool fused : {false, true}) {
      CAPTURE(name, fused);
      const TempDir temp;
      TinyModel model;
      Random random(4);
      const TensorMap tensors = random_tensors(model, random);
      write_model(temp / "model", model, tensors);
      ShardRequest request = deployed_request(layout(name), temp / "model", temp / "out", 4);
      if (name == std::string("nxdi")) request.target.options.set_flag("fuse-qkv", fused);
      shard(request);
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
      model.kv_heads = 4;
      write_file(temp / "out/config.json", model.config().dump());
      for (const auto& entry : fs::recursive_directory_iterator(temp / "out"))
        if (entry.path().extension() == ".safetensors")  // without our record of what was replicated
          write_safetensors(entry.path(), read_tensors(entry.path()));
      const Error error = error_of([&] { consolidated(temp / "out", temp / "wrong"); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK(error.tensor() == "model.layers.0.self_attn.k_proj.weight");
      CHECK_THAT(error.what(), Says("ranks 0 and 1 have the same heads"));
      CHECK_THAT(error.hint(), Says("num_key_value_heads"));
      CHECK_FALSE(fs::exists(temp / "wrong"));
    }
}

/// The case 6q2kv-tp4, made anew in `temp`/out.
void make_case(const TempDir& temp) {
  const fs::path model = testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original");
  shard(deployed_request(layout("nxdi"), model, temp / "out", 4));
}

TEST_CASE("Numbers where zeros should be, and a rank's file under another's name, are refused") {
  const auto broken = [&](const char* tensor, std::size_t byte, std::uint32_t rank) {
    const TempDir temp;
    make_case(temp);
    const fs::path file = temp / ("out/weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors");
    TensorMap tensors = read_tensors(file);
    REQUIRE(byte < tensors.at(tensor).bytes.size());
    tensors.at(tensor).bytes[byte] ^= 1;
    write_safetensors(file, tensors);
    for (const auto& [name, others] : read_weights(temp / "out"))  // as NxD's, which say nothing of themselves
      write_safetensors(temp / ("out/" + name), others);
    const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
    CHECK_FALSE(fs::exists(temp / "whole"));
    const Checkpoint a = read_checkpoint(temp / "out", {ConfigUse::kStrict});
    const Checkpoint b =
        read_checkpoint(testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original"), {ConfigUse::kStrict});
    CHECK(error_of([&] { verify(a.map, b.map, {}, {}); }).kind() == ErrorKind::kBadInput);
    CHECK(error_of([&] { verify(b.map, a.map, {}, {}); }).kind() == ErrorKind::kBadInput);
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == file.string());
    CHECK(error.tensor() == tensor);
    return error;
  };
  // Rank 1 has the query heads 2 and one of zeros: the last 8 of 16 rows of 48 numbers.
  const Error zeros = broken("layers.0.self_attn.qkv_proj.q_proj.weight", 2 * 48 * 8 + 5, 1);
  CHECK_THAT(zeros.what(), Says("holds other values than zeros in its padding"));
  CHECK_THAT(zeros.what(), Says("[8, 2]"));
  CHECK_THAT(broken("rank_util.rank", 0, 3).what(), Says("is not the number of 3"));
  CHECK_THAT(broken("layers.1.self_attn.qkv_proj.k_proj.weight", 3, 1).what(), Says("is a replica of"));
}

TEST_CASE("Ranks that have nothing but what pads are written by a run of their own") {
  const TempDir temp;
  TinyModel model;
  model.heads = model.kv_heads = 5;
  model.vocab = 6;
  Random random(5);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  for (const Layout* const kind : {layout("nxdi"), layout("presharded")}) {
    DYNAMIC_SECTION(kind->traits().name) {
      ShardRequest request = deployed_request(kind, temp / "model", temp / kind->traits().name, 4);
      request.target.options.set_flag("pad", true);
      shard(request);
      const auto all = read_weights(request.output_directory);
      request.output_directory = temp / (std::string(kind->traits().name) + "-last");
      request.target.options.set_number("start-rank", 3), request.target.options.set_number("end-rank", 3);
      shard(request);
      const std::string last = "weights/tp3_sharded_checkpoint.safetensors";
      CHECK((read_weights(request.output_directory).at(last) == all.at(last)));
    }
  }
}

TEST_CASE("That projections are fused is no option without effect") {
  const TempDir temp;
  ShardRequest request = deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp4/original"), temp / "out", 2);
  request.target.options.set_flag("fuse-qkv", true);
  const auto job = plan_shard(request);
  REQUIRE(job->attention);
  CHECK(job->attention->form == AttentionForm::kFused);
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes.front(), Says("NxD Inference loads these files"));
}

TEST_CASE("A described model takes NxD Inference's names where its description says that it has them") {
  const fs::path model = testdata("golden/nxdi/qwen3-tp4-fused/original");
  const TempDir temp;
  json family = json::parse(builtin_family("qwen3")->json_text);
  const auto request_by = [&](const json& description) {
    write_file(temp / "spec.json", description.dump(2));
    ShardRequest request = deployed_request(layout("nxdi"), model, temp / "out", 4);
    request.source.family = read_family(temp / "spec.json");
    return request;
  };
  shard(request_by(family));
  shard(deployed_request(layout("nxdi"), model, temp / "built-in", 4));
  CHECK((read_weights(temp / "out") == read_weights(temp / "built-in")));
  family["nxd_inference"]["q_norm"] = "norm_of_q";
  fs::remove_all(temp / "out");
  const ShardRequest renamed = request_by(family);
  shard(renamed);
  CHECK(read_weights(temp / "out").begin()->second.count("layers.1.self_attn.norm_of_q.weight") == 1);
  CHECK((consolidated(temp / "out", temp / "whole", renamed.source.family) == read_model(model)));

  family["nxd_inference"] = {{"q_proj", "query"}};
  const Error split = error_of([&] { request_by(family); });
  CHECK_THAT(split.what(), Says("self_attn.q_proj, which is not there, or not replicated"));
  family.erase("nxd_inference");
  fs::remove_all(temp / "out");
  const Error unknown = error_of([&] { plan_shard(request_by(family)); });
  CHECK(unknown.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(unknown.hint(), Says("llama, mistral, qwen2, qwen3"));
}

TEST_CASE("A described model without attention, and sizes that no model has, are refused") {
  const TempDir temp;
  make_case(temp);
  json family = json::parse(builtin_family("llama")->json_text);
  family.erase("attention");
  family.erase("nxd_inference");
  write_file(temp / "spec.json", family.dump());
  ShardRequest request = deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp4/original"), temp / "o", 4);
  request.source.family = read_family(temp / "spec.json");
  CHECK(error_of([&] { plan_shard(request); }).kind() == ErrorKind::kUnsupported);
  CHECK(error_of([&] { consolidated(temp / "out", temp / "whole", request.source.family); }).kind() ==
        ErrorKind::kUnsupported);
  json config = json::parse(read_file(temp / "out/config.json"));
  config["vocab_size"] = 274877906945;
  write_file(temp / "out/config.json", config.dump());
  CHECK_THAT(error_of([&] { consolidated(temp / "out", temp / "whole"); }).what(), Says("more than any model has"));
}

TEST_CASE("Floating tensors take the dtype of config.json, as NxD Inference gives it to them") {
  const TempDir temp;
  TinyModel model;
  Random random(3);
  TensorMap tensors = random_tensors(model, random, DType::kF32);
  write_model(temp / "model", model, tensors);
  json config = json::parse(read_file(temp / "model/config.json"));
  config["torch_dtype"] = "bfloat16";
  write_file(temp / "model/config.json", config.dump());
  const auto job = plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2));
  CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                    [](const std::string& note) { return note.find("are cast to BF16") != note.npos; }));
  execute(*job, unsynced());
  ConvertRequest cast;
  cast.source.path = temp / "model";
  cast.output_directory = temp / "cast";
  cast.dtype = DType::kBF16;
  execute(*plan_convert(cast), unsynced());
  CHECK((consolidated(temp / "out", temp / "whole") == read_model(temp / "cast")));
  ConvertRequest to_nxdi = convert_request(temp / "model", temp / "converted");
  to_nxdi.target.layout = layout("nxdi");
  to_nxdi.target.tp = 2;
  execute(*plan_convert(to_nxdi), unsynced());
  CHECK((read_weights(temp / "converted") == read_weights(temp / "out")));
}

TEST_CASE("A dtype in config.json that is none is refused where it is needed, with its key and value") {
  const TempDir temp;
  const TinyModel model;
  Random random(4);
  write_model(temp / "model", model, random_tensors(model, random, DType::kF32));
  const std::string path = (temp / "model/config.json").string();
  const json config = json::parse(read_file(path));
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"torch_dtype": "bfloat17"})", "\"torch_dtype\" is \"bfloat17\", expected the name of a dtype"},
      {R"({"dtype": "torch.bfloat16"})", "\"dtype\" is \"torch.bfloat16\""},
      {R"({"dtype": "", "torch_dtype": "float16"})", "\"dtype\" is \"\""},
      {R"({"dtype": 16})", "\"dtype\" is 16"},
      {R"({"torch_dtype": {"": "float16"}})", "\"torch_dtype\" is an object"}};
  for (const auto& [patch, says] : wrong) {
    DYNAMIC_SECTION(patch) {
      json patched = config;
      patched.update(json::parse(patch));
      write_file(path, patched.dump());
      ConvertRequest convert = convert_request(temp / "model", temp / "out");
      convert.target.layout = layout("nxdi");
      convert.target.tp = 2;
      for (const Error& error :
           {error_of([&] { plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2)); }),
            error_of([&] { plan_convert(convert); })}) {
        CHECK(error.kind() == ErrorKind::kBadInput);
        CHECK(error.path() == path);
        CHECK_THAT(error.what(), Says(says));
      }
      convert.dtype = DType::kBF16;  // then it is not needed
      CHECK_NOTHROW(plan_convert(convert));
      CHECK_NOTHROW(plan_shard(deployed_request(layout("presharded"), temp / "model", temp / "out", 2)));
    }
  }
  json both = config;
  SECTION("two dtypes, of which transformers takes dtype") {
    both.update({{"dtype", "bfloat16"}, {"torch_dtype", "float16"}});
    write_file(path, both.dump());
    const auto job = plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2));
    CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                      [](const std::string& note) { return note.find("are cast to BF16") != note.npos; }));
  }
  SECTION("null, which is none") {
    both["dtype"] = both["torch_dtype"] = nullptr;
    write_file(path, both.dump());
    CHECK_NOTHROW(plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2)));
  }
}

TEST_CASE("What these layouts do not have is refused, with what has it") {
  const fs::path model = testdata("golden/nxdi/llama-tp4/original");
  const TempDir temp;
  const auto refused = [&](const Layout* kind, const std::function<void(TargetRequest&)>& change, const char* says) {
    ShardRequest request = deployed_request(kind, model, temp / "out", 4);
    change(request.target);
    const Error error = error_of([&] { plan_shard(request); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.what(), Says(says));
  };
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.pp = 2; }, "layout nxdi has no pipeline stages");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.format = Format::kPytorch; }, "does not support `format` pytorch");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.options.set_number("kv-size-multiplier", 2); }, "`kv-size-multiplier`");
  refused(
      layout("presharded"), [](TargetRequest& s) { s.options.set_flag("vocab-parallel", true); }, "`vocab-parallel`");
  refused(
      layout("ranks"), [](TargetRequest& s) { s.options.set_flag("pad", true); }, "`pad`");
  refused(
      layout("ranks"), [](TargetRequest& s) { s.options.set("kv-replication", "adjacent"); }, "`kv-replication`");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.options.set("kv-replication", "adjacent"); }, "`kv-replication`");
  refused(
      layout("nxd"), [](TargetRequest& s) { s.format = Format::kSafetensors; },
      "does not support `format` safetensors");
  const Error family = error_of([&] {
    plan_shard(
        deployed_request(layout("nxdi"), testdata("golden/preshard/granite-tied-tp2/original"), temp / "out", 2));
  });
  CHECK(family.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(family.hint(), Says("a layout that keeps the checkpoint's names"));
}

TEST_CASE("Weights for inference that are not of the model beside them are refused by tensor and file") {
  const auto refused = [&](const char* key, const json& value) {
    const TempDir temp;
    make_case(temp);
    json config = json::parse(read_file(temp / "out/config.json"));
    config[key] = value;
    write_file(temp / "out/config.json", config.dump());
    const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(fs::exists(temp / "whole"));
    return error;
  };
  CHECK_THAT(refused("num_hidden_layers", 1).what(), Says("has no such tensor"));
  CHECK_THAT(refused("num_hidden_layers", 3).what(), Says("num_hidden_layers is 3 in config.json"));
  CHECK_THAT(refused("vocab_size", 128).what(), Says("lm_head.weight"));
  CHECK_THAT(refused("num_key_value_heads", 3).what(), Says("self_attn"));
  CHECK_THAT(refused("intermediate_size", 44).what(), Says("mlp"));
}

}  // namespace
}  // namespace reshard::test
