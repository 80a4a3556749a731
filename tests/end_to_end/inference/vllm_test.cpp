// The layout vllm beyond what golden_test.cpp checks on vLLM's and SGLang's own files.

#include <fmt/format.h>

#include "end_to_end/golden_checks.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

fs::path vllm_case(const std::string& name) {
  return testdata("golden/vllm") / name;
}

const fs::path kLlama = vllm_case("llama-tp2") / "original";

RequestFields to_vllm(std::uint32_t tp, const std::vector<std::string>& options = {}) {
  return {.layout = "vllm", .tp = tp, .options = options};
}

/// A sharded checkpoint that cases spoil.
struct ShardedByVllm {
  /// Of a golden case.
  explicit ShardedByVllm(const char* name) { fs::copy(vllm_case(name) / "sharded", directory); }
  fs::path part(int rank, int number = 0) const {
    return directory / fmt::format("model-rank-{}-part-{}.safetensors", rank, number);
  }
  Error refused(const Refusal& refusal) const {
    return check_refused([&] { consolidated(directory, temp / "whole"); }, refusal);
  }

  TempDir temp;
  fs::path directory = temp / "vllm";
};

TEST_CASE("A rank that lacks a part, or has a tensor twice, is refused") {
  const ShardedByVllm run("llama-parts-tp2");
  SECTION("a part in the middle") {
    fs::remove(run.part(1, 3));
    run.refused({.says = "a part of rank model-rank-1 is missing: there are 8, up to number 8"});
  }
  SECTION("the last part of all ranks") {
    for (const int rank : {0, 1}) fs::remove(run.part(rank, 8));
    CHECK_FALSE(run.refused({.says = "is missing: every known version of vLLM has it"}).tensor().empty());
  }
  SECTION("one more with tensors of another") {
    fs::copy_file(run.part(0, 1), run.part(0, 9));
    run.refused({.says = {"is in this file and in", "model-rank-0-part-1.safetensors"}});
  }
}

TEST_CASE("Parts that were swapped between ranks, or come from another program, are refused") {
  const TempDir temp;
  convert(kLlama, temp / "vllm", to_vllm(2, {"max-shard-size=20KB"}));
  const fs::path a = temp / "vllm/model-rank-0-part-1.safetensors", b = temp / "vllm/model-rank-1-part-1.safetensors";
  SECTION("swapped") {
    swap_files(a, b);
    check_refused(
        [&] { consolidated(temp / "vllm", temp / "whole"); },
        {.path = a,
         .says = {"its metadata records rank tp 1/2", "but that of model-rank-0-part-0.safetensors records tp 0/2"}});
  }
  SECTION("saved again without the rank's record") {
    write_safetensors(b, read_tensors(b));
    check_refused([&] { consolidated(temp / "vllm", temp / "whole"); },
                  {.path = b, .says = "does not record its rank"});
  }
}

TEST_CASE("Files that are a checkpoint themselves do not go beside shards of another layout, nor those beside them") {
  struct Row {
    RequestFields first, second;
  };
  const RequestFields ranks{.layout = "ranks", .tp = 2, .force = true};
  for (const auto& [first, second] : {Row{to_vllm(2), ranks},
                                      {ranks, {.layout = "vllm", .tp = 2, .force = true}},
                                      {ranks, {.layout = "nxd", .tp = 2, .force = true}},
                                      {ranks, {.layout = "dcp", .options = {"fsdp=2"}, .force = true}}}) {
    CAPTURE(second.layout);
    const TempDir temp;
    convert(kLlama, temp / "out", first);
    const auto before = snapshot(temp.path());
    check_refused([&, &fields = second] { convert(kLlama, temp / "out", fields); },
                  {.path = temp / "out", .says = "contains a sharded checkpoint in layout " + first.layout});
    CHECK(snapshot(temp.path()) == before);
  }
}

TEST_CASE("Ranks of another degree than the files are for are refused") {
  const ShardedByVllm run("llama-kv2-tp4");
  for (const int rank : {2, 3}) fs::remove(run.part(rank));
  run.refused({.says = {"belongs to one of 4 ranks", "there are 2 ranks"}, .hint = "copy the files of all ranks here"});
}

TEST_CASE("Another value of a scale, of padding and of a map of experts is found") {
  for (const auto& [name, tensor, byte, says] :
       {std::tuple("llama-tp2", "model.layers.1.self_attn.attn._k_scale", 0,
                   "differs from the value that the layout has there"),
        {"llama-vocab200-tp2", "lm_head.weight", 127 * 64, "values other than zeros in its padding"},
        {"v0.23.0-qwen3_moe-ep-tp2", "model.layers.1.mlp.experts._expert_map", 0,
         "differs from the value that the layout has there, first at [0]"}}) {
    const ShardedByVllm run(name);
    flip_bit(run.part(1), tensor, static_cast<std::size_t>(byte));
    run.refused({.tensor = tensor, .says = says});
  }
}

TEST_CASE("Ranks with whole experts that become others without them are told so") {
  const ShardedByVllm run("v0.23.0-qwen3_moe-ep-tp2");
  const auto notes = [&](const std::vector<std::string>& options) {
    return joined_notes(*plan_convert(convert_request(run.directory, run.temp / "again", to_vllm(2, options))));
  };
  CHECK_THAT(notes({}),
             Says("the source was written with `enable-expert-parallel`, but the output is written without"));
  CHECK_THAT(notes({"enable-expert-parallel"}), !Says("the source was written"));
}

TEST_CASE("Ranks that become others keep the version of their names, unless another is given") {
  for (const char* name : {"vllm/v0.10.0-llama-tied-tp2", "vllm/v0.19.1-qwen3_moe-tp2", "vllm/v0.23.0-qwen2_moe-tp2",
                           "vllm/llama-tp2", "sglang/qwen2_moe-tp2"}) {
    CAPTURE(name);
    const fs::path source = testdata("golden") / name / "sharded";
    const TempDir temp;
    convert(source, temp / "same", to_vllm(2));
    for (const int rank : {0, 1}) {
      const std::string file = fmt::format("model-rank-{}-part-0.safetensors", rank);
      CHECK((read_tensors(temp / "same" / file) == read_tensors(source / file)));
    }
    convert(source, temp / "newest", to_vllm(2, {"vllm-version=main-2026-08-17"}));
    const auto names = [](const fs::path& directory) {
      std::set<std::string> all;
      for (const auto& [tensor, data] : read_tensors(directory / "model-rank-0-part-0.safetensors")) all.insert(tensor);
      return all;
    };
    CHECK((names(temp / "newest") == names(temp / "same")) == (std::string(name) == "vllm/llama-tp2"));
  }
}

TEST_CASE("Ranks of SGLang stay such, which an older vLLM loads, too") {
  const TempDir temp;
  const fs::path source = testdata("golden/sglang/qwen2_moe-tp2/sharded");
  const auto job = plan_convert(convert_request(source, temp / "again", to_vllm(1)));
  CHECK_THAT(joined_notes(*job), Says("the files are for vLLM 0.11.0 or SGLang 0.5.6, which has the same names, and "
                                      "its tensor-parallel size of 1"));
}

TEST_CASE("Files of other ranks or parts in the output directory are not mixed with new ones") {
  const TempDir temp;
  const fs::path model = vllm_case("llama-kv2-tp4") / "original";
  shard(model, temp / "out", to_vllm(4));
  RequestFields again = to_vllm(2);
  again.force = true;
  check_refused([&] { shard(model, temp / "out", again); },
                {.says = "model-rank-2-part-0.safetensors, model-rank-3-part-0.safetensors"});
  again.tp = 4;
  CHECK_NOTHROW(shard(model, temp / "out", again));
}

TEST_CASE("Rotary tables of old checkpoints are left out") {
  const TempDir temp;
  TensorMap tensors = read_model(kLlama);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {4}, std::string(16, '\1')};
  write_safetensors(temp / "model/model.safetensors", tensors);
  fs::copy_file(kLlama / "config.json", temp / "model/config.json");
  const auto job = plan_shard(shard_request(temp / "model", temp / "out", to_vllm(2)));
  CHECK_THAT(joined_notes(*job), Says("left out, as vLLM computes them: model.layers.0.self_attn.rotary_emb.inv_freq"));
  execute(*job, unsynced());
  GoldenOutput{temp / "out", vllm_case("llama-tp2"), golden_of(vllm_case("llama-tp2")), Format::kSafetensors}
      .check_ranks();
}

TEST_CASE("What vLLM does not load, or serves otherwise, is refused with the reason") {
  const TempDir temp;
  fs::copy(kLlama, temp / "quantized");
  merge_json(temp / "quantized/config.json", {{"quantization_config", {{"quant_method", "bitsandbytes"}}}});
  Family other = *builtin_family("llama"), own = other;
  other.model_type = "olmo2";
  own.attention.reset();
  own.json_text += " ";
  const auto with_family = [](const Family& family) {
    RequestFields fields = to_vllm(2);
    fields.family = std::make_shared<const Family>(family);
    return fields;
  };
  RequestFields staged = to_vllm(2), half = to_vllm(2);
  staged.pp = 2;
  half.dtype = DType::kF16;
  struct Asked {
    RequestFields fields;
    fs::path model = kLlama;
  };
  check_refusals<Asked>(
      [&](const Asked& asked) { convert(asked.model, temp / "out", asked.fields); },
      {.kind = ErrorKind::kUsage, .unwritten = temp / "out"},
      {{"pipeline stages", {staged}, {.says = "layout vllm has no pipeline stages"}},
       {"a quantised model",
        {to_vllm(2), temp / "quantized"},
        {.kind = ErrorKind::kUnsupported,
         .says = "the model is quantised (bitsandbytes)",
         .hint = "vLLM loads the Hugging Face directory"}},
       {"an architecture that is served otherwise",
        {with_family(other)},
        {.kind = ErrorKind::kUnsupported,
         .says = "vLLM's names for olmo2 are unknown",
         .hint = "supported are gemma, gemma2"}},
       {"a description of the user's own",
        {with_family(own)},
        {.kind = ErrorKind::kUnsupported,
         .says = "vLLM's names for llama are known only for the built-in description",
         .hint = "leave out `spec`"}},
       {"heads that the ranks do not divide",
        {to_vllm(3)},
        {.says = "4 query heads do not divide over 3 ranks", .hint = "TP degrees that work for this model: 1, 2, 4"}},
       {"a degree that the vocabulary does not have",
        {to_vllm(8)},
        {.says = "4 query heads do not divide over 8 ranks", .hint = "1, 2, 4"}},
       {"a version that nobody knows",
        {to_vllm(2, {"vllm-version=0.12.0"})},
        {.says = "\"0.12.0\" is not one of main-2026-08-17, 0.24.0"}},
       {"expert parallelism without experts",
        {to_vllm(2, {"enable-expert-parallel"})},
        {.kind = ErrorKind::kUnsupported, .says = "`enable-expert-parallel` is not supported for llama"}},
       {"SGLang and a family that was not run there",
        {to_vllm(2, {"vllm-version=sglang-0.5.6"}), vllm_case("gemma3_text-kv1-tp2") / "original"},
        {.kind = ErrorKind::kUnsupported, .says = "SGLang's tensors of gemma3_text are unknown"}},
       {"float16 where vLLM does not serve it",
        {half, vllm_case("gemma2-tp2") / "original"},
        {.kind = ErrorKind::kUnsupported, .says = "vLLM does not serve models of gemma2 in float16"}}});
}

}  // namespace
}  // namespace reshard::test
