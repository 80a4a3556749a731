// The layout vllm beyond what golden_test.cpp checks on vLLM's and SGLang's own files.

#include <nlohmann/json.hpp>

#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/plan/job/convert.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path vllm_case(const std::string& name) {
  return testdata("golden/vllm") / name;
}

ShardRequest vllm_request(const fs::path& model, const fs::path& output, std::uint32_t tp) {
  return deployed_request(layout("vllm"), model, output, tp);
}

/// The rank in "model-rank-1-part-0.safetensors" or "shard_0_of_rank_1.safetensors".
std::string rank_in(const std::string& file) {
  const std::size_t begin = file.find_first_of("0123456789", file.find("rank"));
  return file.substr(begin, file.find_first_not_of("0123456789", begin) - begin);
}

/// The tensors of each rank in `directory`, of all its parts.
json ranks_in(const fs::path& directory) {
  json ranks = json::object();
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("model-rank-")) ranks[rank_in(name)].update(describe_tensors(read_tensors(entry.path())));
  }
  return ranks;
}

json ranks_of_golden(const json& golden) {
  json ranks = json::object();
  for (const auto& [file, tensors] : golden.at("files").items())
    if (file.find("rank") != std::string::npos) ranks[rank_in(file)].update(tensors);
  return ranks;
}

/// What vLLM wrote, with its config.json, under the usual names.
void copy_sharded(const fs::path& golden_case, const fs::path& to) {
  fs::create_directory(to);
  for (const auto& entry : fs::directory_iterator(golden_case / "sharded")) {
    std::string name = entry.path().filename();
    if (name.starts_with("shard_"))  // of another pattern
      name = "model-rank-" + rank_in(name) + "-part-" + name.substr(6, name.find('_', 6) - 6) + ".safetensors";
    fs::copy_file(entry.path(), to / name);
  }
}

TEST_CASE("A rank that lacks a part, or has a tensor twice, is refused") {
  const TempDir temp;
  copy_sharded(vllm_case("llama-parts-tp2"), temp / "vllm");
  SECTION("a part in the middle") {
    fs::remove(temp / "vllm/model-rank-1-part-3.safetensors");
    check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                  {.says = "a part of rank model-rank-1 is missing: there are 8, up to number 8"});
  }
  SECTION("the last part of all ranks") {
    for (const char* rank : {"0", "1"})
      fs::remove(temp / ("vllm/model-rank-" + std::string(rank) + "-part-8.safetensors"));
    const Error error = check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                                      {.says = "is missing: every known version of vLLM has it"});
    CHECK_FALSE(error.tensor().empty());
  }
  SECTION("one more with tensors of another") {
    fs::copy_file(temp / "vllm/model-rank-0-part-1.safetensors", temp / "vllm/model-rank-0-part-9.safetensors");
    check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                  {.says = {"is in this file and in", "model-rank-0-part-1.safetensors"}});
  }
}

TEST_CASE("Parts that were swapped between ranks, or come from another program, are refused") {
  const TempDir temp;
  ConvertRequest request = convert_request(vllm_case("llama-tp2") / "original", temp / "vllm");
  request.target.layout = layout("vllm");
  request.target.tp = 2;
  request.target.options.set("max-shard-size", "20KB");
  convert(request);
  const fs::path a = temp / "vllm/model-rank-0-part-1.safetensors", b = temp / "vllm/model-rank-1-part-1.safetensors";
  SECTION("swapped") {
    fs::rename(a, temp / "aside");
    fs::rename(b, a);
    fs::rename(temp / "aside", b);
    check_refused(
        [&] { consolidated(temp / "vllm", temp / "whole"); },
        {.path = a, .says = {"its metadata says rank tp 1/2", "model-rank-0-part-0.safetensors says tp 0/2"}});
  }
  SECTION("saved again without the rank's record") {
    write_safetensors(b, read_tensors(b));
    check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                  {.path = b, .says = "does not say which rank it is of"});
  }
}

TEST_CASE("Shards of another layout do not go beside files that are a checkpoint themselves") {
  const TempDir temp;
  copy_sharded(vllm_case("llama-tp2"), temp / "vllm");
  ConvertRequest request = convert_request(vllm_case("llama-tp2") / "original", temp / "vllm");
  request.target.layout = layout("ranks");
  request.target.tp = 2;
  request.force = true;
  check_refused([&] { convert(request); },
                {.path = temp / "vllm", .says = "holds a sharded checkpoint in layout vllm"});
}

TEST_CASE("Files that are a checkpoint themselves do not go beside shards of another layout") {
  const std::string name = GENERATE(as<std::string>(), "vllm", "nxd", "dcp");
  const TempDir temp;
  ConvertRequest request = convert_request(vllm_case("llama-tp2") / "original", temp / "out");
  request.target.layout = layout("ranks");
  request.target.tp = 2;
  convert(request);
  const auto before = snapshot(temp.path());
  request.target.layout = layout(name);
  if (name == "dcp") {
    request.target.tp.reset();
    request.target.options.set("fsdp", "2");
  }
  request.force = true;
  check_refused([&] { convert(request); },
                {.path = temp / "out", .says = "holds a sharded checkpoint in layout ranks"});
  CHECK(snapshot(temp.path()) == before);
}

TEST_CASE("Ranks of another degree than the files are for are refused") {
  const TempDir temp;
  copy_sharded(vllm_case("llama-kv2-tp4"), temp / "vllm");
  for (const int rank : {2, 3}) fs::remove(temp / ("vllm/model-rank-" + std::to_string(rank) + "-part-0.safetensors"));
  check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                {.says = {"is of one of 4 ranks", "there are 2 ranks"}, .hint = "copy the files of all ranks here"});
}

TEST_CASE("Swapped ranks, another value of a scale and another value of padding are found") {
  const TempDir temp;
  const auto change = [&](const char* golden_case, const char* file, const std::string& tensor, std::size_t byte) {
    copy_sharded(vllm_case(golden_case), temp / "vllm");
    TensorMap tensors = read_tensors(temp / "vllm" / file);
    tensors.at(tensor).bytes.at(byte) ^= 1;
    write_safetensors(temp / "vllm" / file, tensors);
    return error_of([&] { consolidated(temp / "vllm", temp / "whole"); });
  };
  SECTION("a scale") {
    const Error error =
        change("llama-tp2", "model-rank-1-part-0.safetensors", "model.layers.1.self_attn.attn._k_scale", 0);
    CHECK(error.tensor() == "model.layers.1.self_attn.attn._k_scale");
    CHECK_THAT(error.what(), Says("differs from the value that the layout has there"));
  }
  SECTION("padding") {
    check_error(change("llama-vocab200-tp2", "model-rank-1-part-0.safetensors", "lm_head.weight", 127 * 64),
                {.tensor = "lm_head.weight", .says = "other values than zeros in its padding"});
  }
  SECTION("a map of experts") {
    check_error(change("v0.23.0-qwen3_moe-ep-tp2", "model-rank-1-part-0.safetensors",
                       "model.layers.1.mlp.experts._expert_map", 0),
                {.says = "differs from the value that the layout has there, first at [0]"});
  }
}

TEST_CASE("Files of other ranks or parts in the output directory are not mixed with new ones") {
  const TempDir temp;
  ShardRequest request = vllm_request(vllm_case("llama-kv2-tp4") / "original", temp / "out", 4);
  shard(request);
  request.force = true;
  request.target.tp = 2;
  check_refused([&] { plan_shard(request); },
                {.says = "model-rank-2-part-0.safetensors, model-rank-3-part-0.safetensors"});
  request.target.tp = 4;
  CHECK_NOTHROW(shard(request));
}

TEST_CASE("Rotary tables of old checkpoints are left out") {
  const TempDir temp;
  TensorMap tensors = read_model(vllm_case("llama-tp2") / "original");
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {4}, std::string(16, '\1')};
  fs::create_directory(temp / "model");
  write_safetensors(temp / "model/model.safetensors", tensors);
  fs::copy_file(vllm_case("llama-tp2") / "original/config.json", temp / "model/config.json");
  const auto job = plan_shard(vllm_request(temp / "model", temp / "out", 2));
  CHECK(std::any_of(job->notes.begin(), job->notes.end(), [](const std::string& note) {
    return note.find("left out, as vLLM computes them: model.layers.0.self_attn.rotary_emb.inv_freq") != note.npos;
  }));
  shard(vllm_request(temp / "model", temp / "out", 2));
  CHECK(ranks_in(temp / "out") == ranks_of_golden(golden_of(vllm_case("llama-tp2"))));
}

/// The model of a case with its config.json changed.
fs::path with_config(const TempDir& temp, const fs::path& model, const json& changes) {
  fs::copy(model, temp / "model");
  json config = json::parse(read_file(model / "config.json"));
  config.update(changes);
  fs::remove(temp / "model/config.json");
  write_file(temp / "model/config.json", config.dump());
  return temp / "model";
}

TEST_CASE("What vLLM does not load, or serves otherwise, is refused with the reason") {
  const TempDir temp;
  const fs::path llama = vllm_case("llama-tp2") / "original";
  ShardRequest request = vllm_request(llama, temp / "out", 2);
  const auto refused = [&](ErrorKind kind, const char* what, const char* hint) {
    check_refused([&] { plan_shard(request); }, {.kind = kind, .says = what, .hint = hint});
    CHECK_FALSE(fs::exists(temp / "out"));
  };
  SECTION("pipeline stages") {
    request.target.pp = 2;
    refused(ErrorKind::kUsage, "layout vllm has no pipeline stages", "");
  }
  SECTION("a quantised model") {
    request.source.path = with_config(temp, llama, {{"quantization_config", {{"quant_method", "bitsandbytes"}}}});
    refused(ErrorKind::kUnsupported, "the model is quantised (bitsandbytes)", "vLLM loads the Hugging Face directory");
  }
  SECTION("an architecture that is served otherwise") {
    Family family = *builtin_family("llama");
    family.model_type = "olmo2";
    request.source.family = std::make_shared<const Family>(std::move(family));
    refused(ErrorKind::kUnsupported, "vLLM's names for olmo2 are unknown", "known are gemma, gemma2");
  }
  SECTION("a description of the user's own") {
    Family family = *builtin_family("llama");
    family.attention.reset();
    family.json_text += " ";
    request.source.family = std::make_shared<const Family>(std::move(family));
    refused(ErrorKind::kUnsupported, "vLLM's names for llama are known for the built-in description alone",
            "leave out `spec`");
  }
  SECTION("heads that the ranks do not divide") {
    request.target.tp = 3;
    refused(ErrorKind::kUsage, "4 query heads do not divide over 3 ranks",
            "TP degrees that work for this model: 1, 2, 4");
  }
  SECTION("a degree that the vocabulary does not have") {
    request.target.tp = 8;
    refused(ErrorKind::kUsage, "4 query heads do not divide over 8 ranks", "1, 2, 4");
  }
  SECTION("a version that nobody knows") {
    request.target.options.set("vllm-version", "0.12.0");
    refused(ErrorKind::kUsage, "\"0.12.0\" is not one of main-2026-08-17, 0.24.0", "");
  }
  SECTION("expert parallelism without experts") {
    request.target.options.set_flag("enable-expert-parallel", true);
    refused(ErrorKind::kUnsupported, "`enable-expert-parallel` is not supported for llama", "");
  }
  SECTION("SGLang and a family that was not run there") {
    request.source.path = vllm_case("gemma3_text-kv1-tp2") / "original";
    request.target.options.set("vllm-version", "sglang-0.5.6");
    refused(ErrorKind::kUnsupported, "SGLang's tensors of gemma3_text are unknown", "");
  }
}

TEST_CASE("float16 is refused where vLLM does not serve it") {
  const TempDir temp;
  ConvertRequest request = convert_request(vllm_case("gemma2-tp2") / "original", temp / "out");
  request.target.layout = layout("vllm");
  request.target.tp = 2;
  request.dtype = DType::kF16;
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUnsupported, .says = "vLLM does not serve models of gemma2 in float16"});
}

}  // namespace
}  // namespace reshard::test
