// Rank files for models that NxD Inference has compiled: every family that it is known to load, and what its settings
// contradict. testdata/golden/nxdi_compiled is what its own classes have made.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "reshard/base/strings.h"
#include "reshard/engine/check/verify_manifest.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/output/joined_models.h"
#include "reshard/specs/family/family_parser.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path compiled_case(const std::string& name) {
  return testdata("golden/nxdi_compiled") / name;
}

/// Leaves out the parameters that NxD Inference computes with, and rounds.
TensorMap without_rounded(TensorMap tensors, const Family& family) {
  for (const SchemeEntry& entry : family.inference->entries)
    for (std::size_t p = 0; p < entry.changes.size(); ++p)
      if (entry.changes[p].values.plus != 0 || entry.changes[p].values.divisor != 1)
        std::erase_if(tensors, [&](const auto& tensor) { return with_stars(tensor.first) == entry.parameters[p]; });
  return tensors;
}

TEST_CASE("Models of every family that NxD Inference is known to load are sharded for it and come back") {
  std::size_t families = 0;
  for (const std::string& name : architecture_names()) {
    const auto family = builtin_family(name);
    if (family == nullptr || !family->inference) continue;
    CAPTURE(name);
    ++families;
    const TempDir temp;
    const TensorMap tensors = write_architecture(architecture(name), temp / "model");
    for (const std::uint32_t tp : {1, 2}) {
      CAPTURE(tp);
      const fs::path out = temp / ("out" + std::to_string(tp)), whole = temp / ("whole" + std::to_string(tp));
      shard(temp / "model", out, {.layout = "nxdi", .tp = tp});
      CHECK((without_rounded(consolidated(out, whole), *family) == without_rounded(tensors, *family)));
    }
  }
  CHECK(families > 15);
}

TEST_CASE("Degrees that do not divide ranks or experts, and two sets for one purpose, are errors") {
  const fs::path model = compiled_case("moe-qwen3_moe-tp2") / "original";
  const auto refused = [&](const std::vector<std::string>& options, const Refusal& refusal) {
    const TempDir temp;
    CAPTURE(options);
    check_refused(
        [&] { plan_shard(shard_request(model, temp / "out", {.layout = "nxdi", .tp = 4, .options = options})); },
        refusal);
  };
  refused({"moe-ep-degree=3"}, {.kind = ErrorKind::kUsage, .says = "`moe-ep-degree` 3 does not divide 4 ranks"});
  refused({"cp-degree=2", "attention-dp-degree=2"}, {.kind = ErrorKind::kUsage, .says = "are both above 1"});
  refused({"moe-cte-ep-degree=2"}, {.kind = ErrorKind::kUsage, .says = "only one of `moe-cte-ep-degree`"});
  refused({"moe-cte-ep-degree=2", "moe-tkg-ep-degree=2", "moe-ep-degree=2"},
          {.kind = ErrorKind::kUsage, .says = "`moe-ep-degree` does not apply to hybrid sharding"});
  refused({"moe-ep-degree=2", "moe-tp-degree=4"}, {.kind = ErrorKind::kUsage, .says = "is not `tp` 4"});
  refused({"padded-hidden-size=64"}, {.kind = ErrorKind::kUnsupported, .says = "with a padded hidden size is unknown"});
  refused({"shard-on-intermediate", "moe-fused-nki"}, {.kind = ErrorKind::kUnsupported, .says = "is not supported"});
}

TEST_CASE("Products with the weights of a norm, and dtypes of modules, are refused where they are unknown") {
  const fs::path golden = testdata("golden/nxdi_kernels/skip_gamma-llama-tp2");
  const TempDir temp;
  const auto refused = [&](const std::vector<std::string>& options, const char* says) {
    check_refused(
        [&] {
          plan_shard(shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2, .options = options}));
        },
        {.kind = ErrorKind::kUnsupported, .says = says});
  };
  refused({"skip-gamma", "kernels=mlp", "mlp-cp-degree=2"}, "`skip-gamma` together with two sets of matrices");
  refused({"declared-dtypes"}, "form of llama with cast_type as-declared is unknown");
  const std::string settings = read_file(golden / "neuron_config.json");
  fs::create_directories(temp / "compiled");
  for (const auto& [on, off, says] :
       {std::tuple(R"("qkv_kernel_enabled": true)", R"("qkv_kernel_enabled": false)", "qkv_nki_kernel_enabled alone"),
        std::tuple(R"("fused_qkv": true)", R"("fused_qkv": false)", "qkv_kernel_enabled and without fused_qkv")}) {
    write_file(temp / "compiled/neuron_config.json", std::regex_replace(settings, std::regex(on), off));
    TargetRequest request;
    check_refused(
        [&] { complete_for(all_files(), temp / "compiled", request, false); },
        {.kind = ErrorKind::kUnsupported, .path = temp / "compiled/neuron_config.json", .says = {"skip_gamma", says}});
  }
}

TEST_CASE("Files with products of the weights of a norm are not read, with or without neuron_config.json") {
  const TempDir temp;
  shard(testdata("golden/nxdi_kernels/skip_gamma-llama-tp2/original"), temp / "out",
        {.layout = "nxdi", .tp = 2, .options = {"fuse-qkv", "kernels=mlp,qkv", "skip-gamma"}});
  const Refusal refusal{.kind = ErrorKind::kUnsupported,
                        .path = temp / "out/weights/tp0_sharded_checkpoint.safetensors",
                        .says = "has fused_rmsnorm_skip_gamma: the weights were multiplied by norm weights",
                        .hint = "a SHA256SUMS as `manifest` verifies the files"};
  check_refused([&] { consolidated(temp / "out", temp / "whole"); }, refusal);
  check_refused([&] { plan_convert(convert_request(temp / "out", temp / "again", {.layout = "vllm", .tp = 2})); },
                refusal);
  check_refused([&] { read_checkpoint(temp / "out", {}); }, refusal);
}

TEST_CASE("Parameters that lose digits are named, and tensors computed from them are not compared with the model's") {
  const TempDir temp;
  const fs::path model = temp / "model";
  write_architecture(architecture("gpt_oss"), model);
  const auto job = plan_shard(shard_request(model, temp / "out", {.layout = "nxdi", .tp = 2}));
  CHECK_THAT(joined_notes(*job), Says("parameters lose digits that cannot be recovered: "
                                      "model.layers.*.mlp.experts.gate_up_proj_bias[1::2] + 1"));
  job->manifest = true;
  execute(*job, unsynced());
  const fs::path path = temp / "out" / kManifestFile;
  const Manifest manifest = parse_manifest(read_file(path), path);
  CHECK(verify_manifest(read_checkpoint(temp / "out", {}).map, manifest, path, unsynced()).same());
  check_refused([&] { verify_manifest(read_checkpoint(model, {}).map, manifest, path, unsynced()); },
                {.kind = ErrorKind::kUnsupported,
                 .path = path,
                 .says = "computes from the model's, such as model.layers.0.mlp.experts.down_proj_bias / 2"});
}

TEST_CASE("A second set of matrices is refused where its names are unknown") {
  const TempDir temp;
  check_refused(
      [&] {
        plan_shard(shard_request(compiled_case("moe-dbrx-tp2") / "original", temp / "out",
                                 {.layout = "nxdi", .tp = 4, .options = {"cp-degree=2"}}));
      },
      {.kind = ErrorKind::kUnsupported, .says = "second set of matrices for dbrx", .hint = "leave out `cp-degree`"});
}

TEST_CASE("Tensors of gpt_oss whose place is unknown are refused, and sizes that are not padded") {
  const TempDir temp;
  const fs::path golden_case = compiled_case("moe-gpt_oss-padded-tp2");
  const auto refused = [&](const fs::path& model, const std::string& option, const Refusal& refusal) {
    check_refused(
        [&] { plan_shard(shard_request(model, temp / "out", {.layout = "nxdi", .tp = 2, .options = {option}})); },
        refusal);
  };
  refused(golden_case / "original", "cp-degree=2",
          {.kind = ErrorKind::kUnsupported,
           .tensor = "model.layers.0.self_attn.sinks",
           .says = "sinks and two sets of matrices"});
  fs::create_directories(temp / "compiled");
  fs::copy(golden_case / "weights", temp / "compiled/weights");
  fs::copy(golden_case / "neuron_config.json", temp / "compiled/neuron_config.json");
  consolidated(temp / "compiled", temp / "plain");
  refused(temp / "plain", "padded-hidden-size=16",
          {.kind = ErrorKind::kUsage, .says = "`padded-hidden-size` 16 is less than the hidden_size 32"});
}

TEST_CASE("A draft is read with a configuration of its own alone") {
  const TempDir temp;
  const fs::path golden_case = compiled_case("spec-fused-llama-tp2");
  fs::create_directories(temp / "both");
  fs::copy(golden_case / "weights", temp / "both/weights");
  fs::copy(golden_case / "neuron_config.json", temp / "both/neuron_config.json");
  check_refused([&] { consolidated(temp / "both", temp / "whole", {.source_options = {"fused-model=draft"}}); },
                {.kind = ErrorKind::kUsage, .says = "the draft has a configuration of its own", .hint = "`config`"});
}

TEST_CASE("Errors about files without neuron_config.json say what is in it") {
  const TempDir temp;
  const auto refused = [&](const std::string& name, const char* config, const std::vector<std::string>& options,
                           const Refusal& refusal) {
    CAPTURE(name);
    RequestFields fields{.source_options = options};
    if (*config != '\0') fields.config = compiled_case(name) / config;
    const fs::path files = temp / name;
    fs::create_directories(files);
    if (!fs::exists(files / "weights")) fs::copy(compiled_case(name) / "weights", files / "weights");
    check_refused([&] { consolidated(files, temp / "whole", fields); }, refusal);
  };
  refused("moe-gpt_oss-padded-tp2", "original", {},
          {.tensor = "embed_tokens.weight",
           .says = "its shape [30, 32]",
           .hint = "weights or set `from-padded-hidden-size` or set `from-padded-intermediate-size`"});
  refused(
      "moe-qwen3_moe-shard_on_i-tp2", "original", {},
      {.tensor = "layers.0.mlp.expert_mlps.mlp_op.gate_up_proj.weight", .hint = "copy its neuron_config.json next to"});
  refused("spec-fused-llama-tp2", "", {"fused-model=draft"},
          {.kind = ErrorKind::kUnsupported, .says = "without config.json", .hint = "`config`"});
  refused("spec-eagle-llama-tp2", "draft", {"fused-model=draft"},
          {.kind = ErrorKind::kUnsupported, .tensor = "fc.weight", .hint = "set `family` to llama_eagle"});
}

TEST_CASE("Settings of weights that are not written say so to those who write and to those who read") {
  const TempDir temp;
  const std::string settings = read_file(compiled_case("moe-gpt_oss-mxfp4-tp2") / "neuron_config.json");
  write_file(temp / "neuron_config.json",
             std::regex_replace(settings, std::regex("\"hidden_act_bias\": 0.0"), "\"hidden_act_bias\": 0.5"));
  TargetRequest request;
  const Refusal refusal{.kind = ErrorKind::kUnsupported,
                        .path = temp / "neuron_config.json",
                        .says = "is_mxfp4_compute and hidden_act_bias 0.5",
                        .hint = "only biases 0 and 1"};
  check_refused([&] { complete_for(all_files(), temp.path(), request, false); }, refusal);
  fs::copy(compiled_case("moe-gpt_oss-mxfp4-tp2") / "weights", temp / "weights");
  check_refused([&] { consolidated(temp.path(), temp / "whole", RequestFields{}); }, refusal);
}

TEST_CASE("Experts for MXFP4 compute must be in MXFP4, and divide into the kernel's tiles") {
  const TempDir temp;
  const fs::path original = compiled_case("moe-gpt_oss-mxfp4-tp2") / "original";
  const auto refused = [&](const fs::path& model, std::uint32_t tp, const Refusal& refusal) {
    check_refused(
        [&] {
          plan_shard(shard_request(model, temp / "out", {.layout = "nxdi", .tp = tp, .options = {"mxfp4-compute"}}));
        },
        refusal);
  };
  refused(original, 4,
          {.kind = ErrorKind::kUsage,
           .tensor = "model.layers.0.mlp.experts.down_proj_blocks",
           .says = "dim 2 has 2 elements, which 4 does not divide",
           .hint = "pad the model's sizes"});
  refused(compiled_case("moe-gpt_oss-tp2") / "original", 2,
          {.kind = ErrorKind::kUsage, .says = "dim 2 has 1 elements, which 16 does not divide"});
  convert(original, temp / "plain", {.dtype = DType::kBF16});
  refused(temp / "plain", 2, {.kind = ErrorKind::kUnsupported, .says = "experts that are not in MXFP4"});
}

TEST_CASE("Only gpt_oss in MXFP4 is kept for MXFP4 compute") {
  const TempDir temp;
  Request request = shard_request(compiled_case("moe-qwen3_moe-fp8-tp2") / "original", temp / "out",
                                  {.layout = "nxdi", .tp = 2, .options = {"mxfp4-compute"}, .dtype = DType::kBF16});
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported,
                                               .says = "form of qwen3_moe with is_mxfp4_compute is unknown",
                                               .hint = "leave out `mxfp4-compute`"});
  const std::string settings = read_file(compiled_case("moe-gpt_oss-mxfp4-tp2") / "neuron_config.json");
  for (const std::string other : {"int8", "f8e4m3"}) {
    write_file(temp / "neuron_config.json", std::regex_replace(settings, std::regex("f4e2m1fn_x4"), other));
    TargetRequest target;
    check_refused([&] { complete_for(all_files(), temp.path(), target, false); },
                  {.kind = ErrorKind::kUnsupported, .says = "quantization_dtype f4e2m1fn_x4"});
  }
}

TEST_CASE("A model that is dequantised from ranks in MXFP4 does not say that it is quantised") {
  const TempDir temp;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    fs::remove_all(temp / "whole");
    fs::remove_all(temp / "ranks");
    fs::create_directory(temp / "ranks");
    for (const char* name : {"weights", "neuron_config.json"})
      fs::copy(compiled_case("moe-gpt_oss-mxfp4-tp2") / name, temp / "ranks" / name);
    convert(temp / "ranks", temp / "whole", {.dtype = dtype});
    CHECK_FALSE(json::parse(read_file(temp / "whole/config.json")).contains("quantization_config"));
  }
}

TEST_CASE("Values that do not fit the dtype are found in tensors of another order, too") {
  const TempDir temp;
  const fs::path original = compiled_case("moe-gpt_oss-mxfp4-tp2") / "original";
  fs::copy(original, temp / "model");
  TensorMap tensors = read_model(original);
  tensors.at("model.norm.weight").bytes.replace(0, 2, std::string("\0\x7F", 2));  // 1.7e38 in bfloat16
  write_safetensors(temp / "model/model.safetensors", tensors);
  Request request = shard_request(
      temp / "model", temp / "out",
      {.layout = "nxdi", .tp = 1, .options = {"mxfp4-compute", "full-model-shuffled"}, .dtype = DType::kF16});
  RunOptions options = unsynced();
  options.overflow = Overflow::kError;
  check_refused([&] { shard(request, options); },
                {.kind = ErrorKind::kBadInput, .tensor = "model.norm.weight as [512]", .says = "does not fit F16"});
}

TEST_CASE("Padding that NxD Inference always has may be asked for with a compiled model's settings") {
  TargetRequest request;
  request.options.set_flag("pad", true);
  CHECK_NOTHROW(complete_for(all_files(), compiled_case("spec-fused-llama-tp2"), request, false));
}

TEST_CASE("An error about the settings of a compiled model of another family names both families") {
  const TempDir temp;
  Request request = shard_request(compiled_case("moe-mixtral-tp4") / "original", temp / "out",
                                  {.layout = "nxdi", .tp = 4, .options = {"fuse-qkv"}});
  request.target.compiled = testdata("golden/nxdi_kernels/all-square-llama-tp4");
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported,
                                               .says = "fused_qkv",
                                               .hint = "was compiled for a llama model, not for a mixtral model"});
}

TEST_CASE("A compiled model's settings are completed, and must not be contradicted") {
  const fs::path compiled = compiled_case("moe-qwen3_moe-ep2-tp4");
  TargetRequest request;
  request.layout = layout("ranks");
  CHECK(complete_for(all_files(), compiled, request, false).dtype == DType::kBF16);
  CHECK(request.layout == layout("nxdi"));
  CHECK(request.tp == 4u);
  CHECK(request.options.all().at("moe-ep-degree") == "2");
  const auto refused = [&](TargetRequest asked, bool layout_given, const char* says) {
    check_refused([&] { complete_for(all_files(), compiled, asked, layout_given); },
                  {.kind = ErrorKind::kUsage, .path = compiled / "neuron_config.json", .says = says});
  };
  TargetRequest other;
  other.layout = layout("ranks");
  refused(other, true, "`layout` ranks contradicts the compiled model, which has nxdi");
  other.tp = 8;
  refused(other, false, "`tp` 8 contradicts the compiled model, which has 4");
  other.tp.reset();
  other.options.set("moe-ep-degree", "4");
  refused(other, false, "`moe-ep-degree` 4 contradicts the compiled model, which has 2");
  other.options.erase("moe-ep-degree");
  other.options.set("cp-degree", "2");
  refused(other, false, "`cp-degree` 2 contradicts the compiled model, which has no such setting");
  TargetRequest by_file;
  complete_for(all_files(), compiled / "neuron_config.json", by_file, false);
  CHECK(by_file.tp == 4u);
  const TempDir temp;
  check_refused([&] { complete_for(all_files(), temp / "none", other, false); },
                {.kind = ErrorKind::kBadInput, .path = temp / "none", .says = "does not exist"});
  check_refused([&] { complete_for(all_files(), temp.path(), other, false); },
                {.kind = ErrorKind::kBadInput, .path = temp.path(), .hint = "neuron_config.json"});
}

TEST_CASE("A note names the options that do not change the files") {
  const TempDir temp;
  const auto notes = [&](const fs::path& model, RequestFields fields) {
    fields.layout = "nxdi";
    fields.tp = 2;
    return joined_notes(*plan_shard(shard_request(model, temp / "out", fields)));
  };
  CHECK_THAT(notes(compiled_case("moe-gpt_oss-tp2") / "original", {.options = {"fuse-qkv"}, .dtype = DType::kBF16}),
             !Says("effect"));
  const std::string dbrx = notes(compiled_case("moe-dbrx-tp2") / "original", {.options = {"fuse-qkv"}});
  CHECK_THAT(dbrx, Says("without effect on the files of this dbrx model: fuse-qkv"));
  CHECK(dbrx.find("effect") == dbrx.rfind("effect"));
  const fs::path quantized = compiled_case("quant-int8-per_channel-llama-tp2");
  CHECK_THAT(notes(quantized / "quantized", {.options = {"kernels=mlp"}, .config = quantized / "original"}),
             Says("without effect on the files of this quantised llama model: mlp"));
}

TEST_CASE("Parameters whose entry has an empty name are left out, with a note") {
  const TempDir temp;
  const json family = {{"like", "llama"},
                       {"model_type", "llama"},
                       {"nxd_inference", {{"entries", {{{"entry", ""}, {"parameters", "model.norm.weight"}}}}}}};
  write_file(temp / "spec.json", family.dump());
  const auto job = plan_shard(shard_request(compiled_case("spec-fused-llama-tp2") / "original", temp / "out",
                                            {.layout = "nxdi", .tp = 2, .family = read_family(temp / "spec.json")}));
  CHECK_THAT(joined_notes(*job), Says("left out, because the files have no place for them: model.norm.weight"));
}

TEST_CASE("Scales of a quantised model are not among the float32 tensors that `dtype` casts") {
  const TempDir temp;
  const fs::path golden = compiled_case("quant-int8-per_channel-llama-tp2");
  const auto job = plan_convert(convert_request(golden / "quantized", temp / "out", {.config = golden / "original"}));
  CHECK_THAT(joined_notes(*job), Says("4 tensors are float32"));
}

TEST_CASE("Errors about a draft say so") {
  const TempDir temp;
  const fs::path golden = compiled_case("spec-fused-llama-tp2");
  const auto refused = [&](const fs::path& draft, const char* option, const Refusal& refusal) {
    Request request =
        shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2, .options = {option}});
    request.target.compiled = golden;
    JoinedModel& joined = request.joined.emplace_back(JoinedModel{"draft", {}});
    joined.source.path = draft;
    joined.source.kind = SourceKind::kWhole;
    check_refused([&] { plan_shard(request); }, refusal);
  };
  refused(golden / "draft", "draft-tp=3", {.kind = ErrorKind::kUsage, .path = golden / "draft"});
  refused(golden / "original", "draft-tp=2",
          {.path = golden / "neuron_config.json", .says = "another draft: hidden_size is", .hint = "give the draft"});
}

TEST_CASE("An option of a model that another one loads must not contradict the compiled model") {
  const auto refused = [&](const std::string& name, const char* option, const char* value, const char* has) {
    const fs::path compiled = compiled_case(name);
    TargetRequest request;
    request.options.set(option, value);
    check_refused(
        [&] { complete_for(all_files(), compiled, request, false); },
        {.kind = ErrorKind::kUsage,
         .path = compiled / "neuron_config.json",
         .says = {fmt::format("`{}`", option), fmt::format("contradicts the compiled model, which has {}", has)}});
  };
  refused("spec-fused-draft_tp2-kernels-llama-tp4", "draft-tp", "1", "2");
  refused("spec-medusa-llama-tp2", "num-medusa-heads", "3", "2");
  refused("spec-fused-llama-tp2", "eagle-input-norm", "true", "no such setting");
}

TEST_CASE("An option must not contradict the compiled model itself, even if its draft has the setting") {
  const fs::path compiled = compiled_case("spec-fused-llama-qwen3-tp2");
  TargetRequest fused;
  fused.options.set_flag("fuse-qkv", true);
  check_refused([&] { complete_for(all_files(), compiled, fused, false); },
                {.kind = ErrorKind::kUsage,
                 .path = compiled / "neuron_config.json",
                 .says = "`fuse-qkv` (given) contradicts the compiled model, which has no such setting",
                 .hint = "leave out `fuse-qkv`: `draft` alone has it, and `for` takes its settings"});
  TargetRequest with_norm;
  with_norm.options.set_flag("eagle-input-norm", true);
  complete_for(all_files(), compiled_case("spec-eagle-input_norm-llama-tp2"), with_norm, false);
  CHECK(!with_norm.options.has("eagle-input-norm"));
  TargetRequest degree;
  degree.options.set("draft-tp", "2");
  CHECK_NOTHROW(complete_for(all_files(), compiled_case("spec-fused-draft_tp2-kernels-llama-tp4"), degree, false));
}

TEST_CASE("Adapters are described by neuron_config.json, its lora_config, or the part that files depend on") {
  const fs::path golden = compiled_case("lora-all-llama-tp2");
  const std::string whole = read_file(golden / "neuron_config.json");
  const json lora = json::parse(std::regex_replace(whole, std::regex("Infinity"), "1"))["neuron_config"]["lora_config"];
  json part = lora;
  for (const char* key : {"lora_ckpt_paths", "lora_ckpt_paths_cpu", "eviction_policy", "batch_size"}) part.erase(key);
  const TempDir temp;
  const auto planned = [&](const std::string& text, bool with_compiled) {
    Request request = shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2});
    request.target.options.set("lora-config", text);
    request.adapters = {golden / "adapters/lora0", golden / "adapters/lora1"};
    if (with_compiled) {
      const CompiledModel compiled = complete_for(all_files(), golden, request.target, true);
      request.joined.push_back({kJoinedAdapter, {}, std::exchange(request.adapters, {})});
      complete_joined(request, compiled);
    }
    return plan_shard(request);
  };
  for (const std::string& text : {whole, lora.dump(2), part.dump()}) {
    CAPTURE(text);
    CHECK_NOTHROW(planned(text, false));
    CHECK_NOTHROW(planned(text, true));
  }
  const auto refused = [&](const std::string& text, bool with_compiled, const Refusal& refusal) {
    check_refused([&] { planned(text, with_compiled); }, refusal);
  };
  json other = part;
  other["max_loras"] = 7;
  refused(other.dump(), true,
          {.kind = ErrorKind::kBadInput,
           .path = golden / "neuron_config.json",
           .says = "weights in another format",
           .hint = "with `lora-config` '{"});
  refused(R"({"neuron_config": {"lora_config": null}})", false,
          {.kind = ErrorKind::kUsage, .says = "compiled without adapters"});
  try {
    planned(R"({"max_lora": 1})", false);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("lora-config") == text.rfind("lora-config"));
  }
}

TEST_CASE("A compiled EAGLE-3 draft whose columns are in another order is refused") {
  const fs::path golden = compiled_case("spec-eagle3-llama-tp2");
  const TempDir temp;
  fs::create_directories(temp / "compiled");
  fs::copy(golden / "weights", temp / "compiled/weights");
  write_file(temp / "compiled/neuron_config.json",
             std::regex_replace(read_file(golden / "neuron_config.json"),
                                std::regex(R"("is_full_model_shuffled": false)"), R"("is_full_model_shuffled": true)"));
  const Refusal refusal{.kind = ErrorKind::kUnsupported,
                        .path = temp / "compiled/neuron_config.json",
                        .says = {"is_full_model_shuffled", "fc.weight"},
                        .hint = "is_full_model_shuffled"};
  TargetRequest request;
  check_refused([&] { complete_for(all_files(), temp / "compiled", request, false); }, refusal);
  check_refused(
      [&] {
        consolidated(temp / "compiled", temp / "whole",
                     {.config = golden / "draft", .source_options = {"fused-model=draft"}});
      },
      refusal);
}

TEST_CASE("Served adapters without lora_alpha, or with 0, have the scale 1") {
  const fs::path golden = compiled_case("lora-all-llama-tp2");
  const TempDir temp;
  const auto stacks = [&](const json& changes) {
    for (const char* name : {"lora0", "lora1"}) {
      fs::create_directories(temp / name);
      fs::copy(golden / "adapters" / name / "adapter_model.safetensors", temp / name,
               fs::copy_options::overwrite_existing);
      json config = json::parse(read_file(golden / "adapters" / name / "adapter_config.json"));
      config.merge_patch(changes);  // null removes a key
      if (changes.contains("scale")) config["lora_alpha"] = config["r"];
      write_file(temp / name / "adapter_config.json", config.dump());
    }
    Request request = shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2, .force = true});
    const CompiledModel compiled = complete_for(all_files(), golden, request.target, true);
    request.joined.push_back({kJoinedAdapter, {}, {temp / "lora0", temp / "lora1"}});
    complete_joined(request, compiled);
    shard(request);
    return read_tensors(temp / "out/weights/tp0_sharded_checkpoint.safetensors");
  };
  const TensorMap expected = stacks({{"scale", 1}});
  CHECK((stacks({{"lora_alpha", nullptr}}) == expected));
  CHECK((stacks({{"lora_alpha", 0}}) == expected));
  write_safetensors(temp / "lora1/adapter_model.safetensors", {});
  Request request = shard_request(golden / "original", temp / "out", {.tp = 2, .force = true});
  request.adapters = {temp / "lora1"};
  request.target.format.reset();
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kBadInput,
                                               .path = temp / "lora1/adapter_model.safetensors",
                                               .says = "contains no tensors",
                                               .hint = "fetch the file again"});
}

TEST_CASE("Adapters are written to the slots with the names of their directories, in any order") {
  const fs::path golden = compiled_case("lora-all-llama-tp2"), adapters = golden / "adapters";
  const TempDir temp;
  const auto request = [&](std::vector<fs::path> given) {
    Request asked = shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2, .force = true});
    const CompiledModel compiled = complete_for(all_files(), golden, asked.target, true);
    asked.joined.push_back({kJoinedAdapter, {}, std::move(given)});
    complete_joined(asked, compiled);
    return asked;
  };
  shard(request({adapters / "lora1", adapters / "lora0"}));
  for (const char* name : {"tp0_sharded_checkpoint.safetensors", "tp1_sharded_checkpoint.safetensors"})
    CHECK((read_tensors(temp / "out/weights" / name) == read_tensors(golden / "weights" / name)));
  fs::copy(adapters / "lora1", temp / "other");
  fs::create_directories(temp / "again");
  fs::copy(adapters / "lora0", temp / "again/lora0");
  for (const auto& second : {std::pair(temp / "other", "(lora0, other)"), {temp / "again/lora0", "(lora0, lora0)"}})
    check_refused(
        [&] {
          plan_shard(request({adapters / "lora0", second.first}));
        },
        {.kind = ErrorKind::kUsage, .says = {"(lora0, lora1)", second.second}, .hint = "`adapter`"});
}

TEST_CASE("Models that NxD Inference cannot load are refused") {
  const TempDir temp;
  const auto refused = [&](const char* type, const json& changes, std::vector<std::string> options, std::uint32_t tp,
                           const char* reason) {
    CAPTURE(type, changes.dump());
    fs::remove_all(temp / "model");
    json config = architecture(type).facts["config"];
    config.update(changes);
    Random random(1);
    write_configured(config, temp / "model", random);
    check_refused(
        [&] {
          plan_shard(shard_request(temp / "model", temp / "out", {.layout = "nxdi", .tp = tp, .options = options}));
        },
        {.kind = ErrorKind::kUnsupported, .says = {"NxD Inference cannot load", reason}});
  };
  refused("llama", {{"attention_bias", true}}, {"fuse-qkv"}, 2, "biases of attention and fused_qkv");
  refused("llama", {{"mlp_bias", true}, {"intermediate_size", 126}}, {}, 4, "biases of the MLP");
  refused("mistral", json::object(), {"fuse-qkv"}, 2, "mistral models with fused_qkv");
  refused("mixtral", json::object(), {"fuse-qkv"}, 2, "mixtral models with fused_qkv");
  refused("mistral", {{"head_dim", 6}}, {}, 2, "head_dim other than");
  refused("mixtral", {{"vocab_size", 126}}, {}, 4, "a vocab_size that the ranks do not divide");
  refused("mixtral", {{"tie_word_embeddings", true}}, {}, 2, "a head that is tied");
  refused("qwen3_moe", {{"vocab_size", 126}}, {}, 4, "a vocab_size");
}

TEST_CASE("A compiled model of other sizes or of another dtype is no place for a model's weights") {
  const fs::path compiled = compiled_case("moe-qwen3_moe-ep2-tp4");
  const TempDir temp;
  fs::create_directories(temp / "model");
  for (const auto& file : fs::directory_iterator(compiled / "original"))
    fs::copy(file.path(), temp / "model" / file.path().filename());
  const auto planned = [&](const fs::path& out, std::optional<DType> dtype) {
    Request request =
        shard_request(temp / "model", out, {.layout = "nxdi", .tp = 4, .options = {"moe-ep-degree=2"}, .dtype = dtype});
    if (out == temp / "elsewhere") request.target.compiled = compiled;
    return plan_shard(request);
  };
  fs::create_directories(temp / "compiled");
  fs::copy(compiled / "neuron_config.json", temp / "compiled/neuron_config.json");
  CHECK_NOTHROW(planned(temp / "compiled", {}));
  check_refused(
      [&] { planned(temp / "compiled", DType::kF32); },
      {.kind = ErrorKind::kBadInput, .path = temp / "compiled/neuron_config.json", .hint = "with `dtype` bfloat16"});
  const std::string settings = read_file(compiled / "neuron_config.json");
  write_file(temp / "compiled/neuron_config.json",
             std::regex_replace(settings, std::regex(R"("num_experts": 4)"), "\"num_experts\": 8"));
  check_refused([&] { planned(temp / "compiled", {}); }, {.kind = ErrorKind::kBadInput,
                                                          .path = temp / "compiled/neuron_config.json",
                                                          .says = "num_experts is 8 there, and 4 in config.json"});
  CHECK_NOTHROW(planned(temp / "elsewhere", {}));
  Request elsewhere =
      shard_request(temp / "model", temp / "elsewhere", {.layout = "nxdi", .tp = 4, .options = {"moe-ep-degree=2"}});
  elsewhere.target.compiled = temp / "compiled";
  check_refused([&] { plan_shard(elsewhere); }, {.path = temp / "compiled/neuron_config.json"});
}

TEST_CASE("The config.json of a compiled model has the sizes and keys of Hugging Face") {
  const TempDir temp;
  const auto config_of = [&](const std::string& name) {
    fs::create_directories(temp / name);
    fs::copy(compiled_case(name) / "weights", temp / name / "weights");
    fs::copy(compiled_case(name) / "neuron_config.json", temp / name / "neuron_config.json");
    consolidated(temp / name, temp / (name + "_whole"), RequestFields());
    return json::parse(read_file(temp / (name + "_whole") / "config.json"));
  };
  const json qwen = config_of("moe-qwen3_moe-ep2-tp4");
  for (const char* key : {"num_local_experts", "n_shared_experts", "neuron_config", "intermediate_size"})
    CHECK_FALSE(qwen.contains(key));
  CHECK(qwen["moe_intermediate_size"] == 12);
  const json deepseek = config_of("moe-deepseek_v3-tp2");
  const json original = json::parse(read_file(compiled_case("moe-deepseek_v3-tp2") / "original/config.json"));
  for (const char* key : {"intermediate_size", "num_key_value_heads", "head_dim", "n_shared_experts"})
    CHECK(deepseek[key] == original[key]);
  CHECK_FALSE(deepseek.contains("dense_intermediate_size"));
}

TEST_CASE("Medusa's heads are complete") {
  const fs::path golden = compiled_case("spec-medusa-llama-tp2") / "original";
  const TempDir temp;
  const TensorMap heads = read_torch_tensors(golden / "medusa_heads.pt");
  for (const std::string name : {"medusa_head_1.0.linear.bias", "medusa_head_0.0.linear.weight"}) {
    CAPTURE(name);
    TensorMap incomplete = heads;
    REQUIRE(incomplete.erase(name) == 1);
    write_torch(temp / "heads.pt", incomplete);
    Request request = shard_request(golden, temp / "out", {.layout = "nxdi", .tp = 2});
    request.joined.emplace_back(JoinedModel{"medusa-heads", {}}).source.path = temp / "heads.pt";
    check_refused([&] { plan_shard(request); },
                  {.kind = ErrorKind::kBadInput, .tensor = name, .says = "another head has it"});
  }
}

TEST_CASE("A draft of EAGLE without a head of its own is refused") {
  const fs::path golden = compiled_case("spec-eagle-llama-tp2");
  const TempDir temp;
  fs::create_directories(temp / "draft");
  fs::copy(golden / "draft/config.json", temp / "draft/config.json");
  TensorMap tensors = read_whole(golden / "draft");
  REQUIRE(tensors.erase("lm_head.weight") == 1);
  write_safetensors(temp / "draft/model.safetensors", tensors);
  Request request = shard_request(golden / "original", temp / "out", {.layout = "nxdi", .tp = 2});
  JoinedModel& draft = request.joined.emplace_back(JoinedModel{"draft", {}});
  draft.source.path = temp / "draft";
  draft.source.kind = SourceKind::kWhole;
  draft.source.family = builtin_family("llama_eagle");
  check_refused([&] { plan_shard(request); }, {.path = temp / "draft", .says = "missing lm_head.weight"});
}

/// Writes an adapter of the module, of rank 2, in the dtype.
void write_adapter(const fs::path& directory, const std::string& module, const Dims& shape, DType dtype) {
  Random random(1);
  const std::string name = "base_model.model." + module;
  fs::create_directories(directory);
  write_safetensors(directory / "adapter_model.safetensors",
                    {{name + ".lora_A.weight", random_tensor(random, dtype, {2, shape[1]})},
                     {name + ".lora_B.weight", random_tensor(random, dtype, {shape[0], 2})}});
  write_file(directory / "adapter_config.json",
             json({{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj"}}}).dump());
}

/// A request that serves the adapter in `adapter` on `modules`.
Request served_request(const fs::path& model, const fs::path& output, const fs::path& adapter, const json& modules) {
  const json lora = {{"target_modules", modules}, {"max_loras", 1}, {"max_lora_rank", 2}};
  Request request =
      shard_request(model, output, {.layout = "nxdi", .tp = 2, .options = {"lora-config=" + lora.dump()}});
  request.joined.push_back({"adapter", {}, {adapter}});
  return request;
}

TEST_CASE("Adapters are served on the matrices of attention and of dense MLPs alone") {
  const TempDir temp;
  const auto refused = [&](const std::string& name, const json& modules, const Refusal& refusal) {
    CAPTURE(name, modules.dump());
    write_adapter(temp / "adapter", "model.layers.0.self_attn.q_proj",
                  name.find("lora") != name.npos ? Dims{32, 40} : Dims{32, 32}, DType::kBF16);
    Request request = served_request(compiled_case(name) / "original", temp / "out", temp / "adapter", modules);
    if (name.find("gpt_oss") != name.npos) request.dtype = DType::kBF16;
    check_refused([&] { plan_shard(request); }, refusal);
  };
  const auto unknown = [&](const std::string& name, const char* module, const std::string& tensor) {
    refused(name, {"q_proj", module},
            {.kind = ErrorKind::kUnsupported, .tensor = tensor, .hint = {module, "target_modules"}});
  };
  unknown("moe-gpt_oss-tp2", "down_proj", "layers.0.feed_forward.moe.expert_mlps.mlp_op.down_proj.weight");
  unknown("moe-gpt_oss-tp2", "gate_up_proj", "layers.0.feed_forward.moe.expert_mlps.mlp_op.gate_up_proj.weight");
  unknown("moe-llama4-tp2", "gate_up_proj", "layers.1.feed_forward.moe.expert_mlps.mlp_op.gate_up_proj.weight");
  unknown("moe-llama4-tp2", "gate_proj", "layers.1.feed_forward.moe.shared_experts.gate_proj.weight");
  unknown("lora-all-llama-tp2", "embed_tokens", "embed_tokens.weight");
  unknown("lora-all-llama-tp2", "lm_head", "lm_head.weight");
  unknown("lora-all-llama-tp2", "input_layernorm", "layers.0.input_layernorm.weight");
  refused("lora-all-llama-tp2", {"self_attn.q_proj"}, {.kind = ErrorKind::kUsage, .says = "names without dots"});
}

TEST_CASE("An adapter that does not fit the served model, or its own config, is refused by the tensor's name") {
  const TempDir temp;
  const fs::path golden = compiled_case("lora-all-llama-tp2");
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  const auto refused = [&](const std::string& module, const std::map<std::string, Dims>& shapes, int rank,
                           const Refusal& refusal) {
    CAPTURE(module, rank);
    write_adapter(temp / "adapter", module, {32, 40}, DType::kBF16);
    Random random(2);
    TensorMap tensors = read_tensors(temp / "adapter/adapter_model.safetensors");
    for (const auto& [name, shape] : shapes) {
      tensors.erase(name);
      if (!shape.empty()) tensors.emplace(name, random_tensor(random, DType::kBF16, shape));
    }
    write_safetensors(temp / "adapter/adapter_model.safetensors", tensors);
    write_file(temp / "adapter/adapter_config.json", json({{"peft_type", "LORA"}, {"r", rank}}).dump());
    const Request request = served_request(golden / "original", temp / "out", temp / "adapter", {"q_proj"});
    check_refused([&] { plan_shard(request); }, refusal);
  };
  const std::string own = "model.layers.0.self_attn.q_proj";
  refused(own, {{q + "lora_A.weight", {2, 41}}}, 2, {.tensor = q + "lora_A.weight", .says = "make it [2, 40]"});
  refused(own, {}, 1, {.tensor = q + "lora_A.weight", .says = "make it [1, 40]", .hint = "another rank"});
  refused(own, {{q + "lora_A.weight", {3, 40}}, {q + "lora_B.weight", {32, 3}}}, 3,
          {.tensor = q + "lora_A.weight", .says = "max_lora_rank is 2"});
  refused(own, {{q + "lora_B.weight", {}}}, 2, {.tensor = q + "lora_B.weight", .says = "is missing, although"});
  refused(own, {{q + "lora_B.bias", {32}}}, 2,
          {.kind = ErrorKind::kUnsupported, .tensor = q + "lora_B.bias", .says = "which alone NxD Inference serves"});
  refused("model.layers.9.self_attn.q_proj", {}, 2, {.says = "adapts a module that the model does not have"});
  refused("model.layers.0.self_attn.o_proj", {}, 2, {.says = "make it [2, 32]"});
  const std::string o = "base_model.model.model.layers.0.self_attn.o_proj.";
  refused("model.layers.0.self_attn.o_proj", {{o + "lora_A.weight", {2, 32}}, {o + "lora_B.weight", {40, 2}}}, 2,
          {.tensor = o + "lora_A.weight", .says = "is not in target_modules"});
}

TEST_CASE("Adapters and Medusa's heads have the dtype of the model that loads them") {
  const TempDir temp;
  const fs::path served = compiled_case("lora-all-llama-tp2") / "original";
  const auto dtypes_of = [&](const Request& request) {
    fs::remove_all(temp / "out");
    shard(request);
    std::set<DType> dtypes;
    for (const auto& [file, tensors] : read_weights(temp / "out"))
      for (const auto& [name, tensor] : tensors) dtypes.insert(tensor.dtype);
    return dtypes;
  };
  write_adapter(temp / "adapter", "model.layers.0.self_attn.q_proj", {32, 40}, DType::kF32);
  CHECK(dtypes_of(served_request(served, temp / "out", temp / "adapter", {"q_proj"})) ==
        std::set{DType::kBF16, DType::kI32});
  const fs::path golden = compiled_case("spec-medusa-llama-tp2") / "original";
  TensorMap heads = read_torch_tensors(golden / "medusa_heads.pt");
  Random random(1);
  for (auto& [name, head] : heads) head = random_tensor(random, DType::kF32, head.shape);
  write_torch(temp / "heads.pt", heads);
  Request request = shard_request(golden, temp / "out", {.layout = "nxdi", .tp = 2});
  request.joined.emplace_back(JoinedModel{"medusa-heads", {}}).source.path = temp / "heads.pt";
  CHECK(dtypes_of(request) == std::set{DType::kBF16, DType::kI32});
}

TEST_CASE("A draft has the vocabulary of its target, and one of EAGLE the hidden size") {
  const TempDir temp;
  const auto refused = [&](const std::string& name, const json& changes, const Texts& sizes) {
    fs::remove_all(temp / "draft");
    json config = json::parse(read_file(compiled_case(name) / "draft/config.json"));
    config.update(changes);
    Random random(1);
    write_configured(config, temp / "draft", random);
    Request request = shard_request(compiled_case(name) / "original", temp / "out", {.layout = "nxdi", .tp = 2});
    SourceRequest& draft = request.joined.emplace_back(JoinedModel{"draft", {}}).source;
    draft.path = temp / "draft";
    draft.kind = SourceKind::kWhole;
    check_refused([&] { plan_shard(request); },
                  {.kind = ErrorKind::kBadInput, .path = temp / "draft", .says = sizes, .hint = "`for`"});
  };
  refused("spec-fused-llama-tp2", {{"vocab_size", 64}}, {"vocab_size is 64", "is 48"});
  refused("spec-eagle-llama-tp2", {{"model_type", "llama_eagle"}, {"hidden_size", 32}},
          {"target_hidden_size is 32", "is 40"});
}

TEST_CASE("A compiled model that loads no rank files, or other ranks, is refused") {
  const fs::path golden = compiled_case("moe-qwen3_moe-ep2-tp4");
  const TempDir temp;
  const auto refused = [&](const json& settings, const char* says) {
    CAPTURE(settings.dump());
    json compiled =
        json::parse(std::regex_replace(read_file(golden / "neuron_config.json"), std::regex("Infinity"), "0"));
    compiled["neuron_config"].update(settings);
    write_file(temp / "compiled/neuron_config.json", compiled.dump());
    const Refusal refusal{.kind = ErrorKind::kUnsupported, .path = temp / "compiled/neuron_config.json", .says = says};
    TargetRequest request;
    check_refused([&] { complete_for(all_files(), temp / "compiled", request, false); }, refusal);
    const RequestFields fields{.layout = "nxdi", .tp = 4, .options = {"moe-ep-degree=2"}};
    check_refused([&] { plan_shard(shard_request(golden / "original", temp / "compiled", fields)); }, refusal);
  };
  fs::create_directories(temp / "compiled");
  refused({{"save_sharded_checkpoint", false}}, "has save_sharded_checkpoint false");
  refused({{"start_rank_id", 2}}, "start_rank_id 2, local_ranks_size 4 and world_size 4");
  refused({{"start_rank_id", -1}}, "start_rank_id -1");
  refused({{"local_ranks_size", 0}}, "local_ranks_size 0");
  refused({{"local_ranks_size", 8}, {"world_size", 8}}, "ranks that do not exist with tp_degree 4");
}

TEST_CASE("Models that NxD Inference has quantised are written for it alone, and compiled models have one layout") {
  const fs::path golden = compiled_case("quant-int8-per_channel-llama-tp2");
  const TempDir temp;
  for (const std::string layout : {"nxd", "ranks", "optimum", "presharded"})
    check_refused(
        [&] {
          plan_shard(shard_request(golden / "quantized", temp / "out",
                                   {.layout = layout, .tp = 2, .config = golden / "original"}));
        },
        {.kind = ErrorKind::kUnsupported,
         .says = "layout " + layout + " has no place for the scales",
         .hint = "NxD Inference"});
  fs::create_directories(temp / "compiled/checkpoint");
  fs::copy(golden / "neuron_config.json", temp / "compiled/neuron_config.json");
  for (const fs::path& out : {temp / "compiled", temp / "compiled/checkpoint"})
    check_refused([&] { plan_shard(shard_request(golden / "original", out, {.layout = "presharded", .tp = 2})); },
                  {.kind = ErrorKind::kBadInput,
                   .path = temp / "compiled/neuron_config.json",
                   .says = "does not load layout presharded",
                   .hint = "nxdi"});
}

TEST_CASE("Options that describe files must agree with neuron_config.json, whose dtype must be known") {
  const fs::path golden = compiled_case("moe-qwen3_moe-ep2-tp4");
  const TempDir temp;
  fs::create_directories(temp / "files");
  fs::copy(golden / "weights", temp / "files/weights");
  fs::copy(golden / "neuron_config.json", temp / "files/neuron_config.json");
  check_refused(
      [&] { consolidated(temp / "files", temp / "whole", {.source_options = {"kernels=mlp"}}); },
      {.kind = ErrorKind::kUsage, .path = temp / "files/neuron_config.json", .says = "`from-kernels` mlp contradicts"});
  const std::string settings = read_file(golden / "neuron_config.json");
  write_file(temp / "files/neuron_config.json",
             std::regex_replace(settings, std::regex(R"("torch_dtype": "bfloat16")"), "\"torch_dtype\": \"half16\""));
  TargetRequest request;
  check_refused([&] { complete_for(all_files(), temp / "files", request, false); },
                {.kind = ErrorKind::kBadInput, .says = "half16"});
}

TEST_CASE("A description's entries for NxD Inference name what the layout does not have") {
  const fs::path model = compiled_case("moe-qwen3_moe-tp2") / "original";
  const TempDir temp;
  const auto refused = [&](const char* key, const char* value, const Refusal& refusal) {
    json family = json::parse(builtin_family("qwen3_moe")->json_text);
    for (json& entry : family["nxd_inference"]["entries"])
      if (entry["entry"] == "layers.*.mlp.router.linear_router.weight") entry[key] = value;
    write_file(temp / "spec.json", family.dump(2));
    const RequestFields described{.layout = "nxdi", .tp = 2, .family = read_family(temp / "spec.json")};
    check_refused([&] { plan_shard(shard_request(model, temp / "out", described)); }, refusal);
  };
  refused("share", "elsewhere", {.says = "\"share\" is \"elsewhere\"", .hint = "cte_attention"});
  refused("kernel", "moe", {.says = "\"kernel\" is \"moe\"", .hint = "qkv"});
  refused("when", "no_such_setting", {.says = "\"when\" reads no_such_setting", .hint = "fused_qkv"});
}

TEST_CASE("Settings whose product pads the output head beyond all vocabularies are refused") {
  const TempDir temp;
  for (const std::uint64_t alignment : {std::uint64_t{1} << 62, std::uint64_t{1} << 40}) {
    const json settings{{"tp_degree", 8}, {"lm_head_pad", true}, {"lm_head_pad_alignment_size", alignment}};
    write_file(temp / "neuron_config.json", json{{"neuron_config", settings}}.dump());
    TargetRequest request{.layout = layout_named("nxdi")};
    check_refused([&] { complete_for(local_storage(), temp.path(), request, true); },
                  {.path = temp / "neuron_config.json", .says = "lm_head_pad_alignment_size"});
  }
}

TEST_CASE("A padded head is inferred from its bias, given half of its form, and not for a larger vocabulary") {
  const fs::path split = compiled_case("vocab-lm_head_pad-sampling-gpt_oss-tp4");
  const TempDir temp;
  for (const char* directory : {"split", "padded"}) fs::create_directories(temp / directory);
  fs::copy(split / "weights", temp / "split/weights", fs::copy_options::recursive);
  const RequestFields half{.config = split / "original", .source_options = {"lm-head-multiple=16"}};
  CHECK(consolidated(temp / "split", temp / "whole", half) ==
        consolidated(temp / "split", temp / "other", {.config = split / "original"}));
  const fs::path padded = compiled_case("vocab-lm_head_pad-llama4-tp2");
  fs::copy(padded / "weights", temp / "padded/weights", fs::copy_options::recursive);
  json config = json::parse(read_file(padded / "original/config.json"));
  config["text_config"]["vocab_size"] = 33;  // the padded head has 32 rows
  write_file(temp / "config.json", config.dump());
  check_refused([&] { consolidated(temp / "padded", temp / "third", {.config = temp / "config.json"}); },
                {.kind = ErrorKind::kBadInput, .says = "does not fit"});
}

}  // namespace
}  // namespace reshard::test
