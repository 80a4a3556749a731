// Weights of models that were compiled with NxD Inference's kernels are stored transposed. testdata/golden/nxdi_kernels
// is what NxD Inference's own classes wrote, with the neuron_config.json that says so.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/convert.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path kernel_case(const std::string& name) {
  for (const fs::path& found : golden_cases("nxdi_kernels"))
    if (found.filename() == name) return found;
  FAIL("no golden case " << name);
  return {};
}

/// A case, and the options with which the same files are written.
struct KernelCase {
  std::string name;
  bool fuse_qkv;
  std::string kernels;
  bool is_square;  // the shapes alone do not say which matrices are transposed
};

const KernelCase kCases[] = {
    {"all-square-llama-tp4", true, "qkv,out-proj,mlp", true},
    {"none-square-llama-tp4", true, "none", true},
    {"all-square_o-qwen3-tp2", true, "qkv,out-proj,mlp", true},
    {"all-bias-replicated-qwen2-tp4", true, "qkv,out-proj,mlp", false},
    {"all-padded_heads-llama-tp4", true, "qkv,out-proj,mlp", false},
    {"attn_block_tkg-llama-tp2", true, "qkv,out-proj", false},
    {"mlp-out-bias-llama-tp2", false, "out-proj,mlp", false},
    {"qkv-not-fused-llama-tp2", false, "none", false},
};

/// The compiled folder of a case as users have it, with the model's config.json unless that is given.
void copy_compiled(const fs::path& golden_case, const fs::path& directory, bool with_neuron_config) {
  fs::create_directories(directory);
  fs::copy(golden_case / "weights", directory / "weights");
  fs::copy_file(golden_case / "original/config.json", directory / "config.json");
  if (with_neuron_config) fs::copy_file(golden_case / "neuron_config.json", directory / "neuron_config.json");
}

ConsolidateRequest consolidate_request(const fs::path& source, const fs::path& output) {
  ConsolidateRequest request;
  request.source.path = source;
  request.output_directory = output;
  return request;
}

TEST_CASE("Weights for kernels are consolidated by neuron_config.json, whether matrices are square or not") {
  for (const KernelCase& kernel : kCases) {
    DYNAMIC_SECTION(kernel.name) {
      const fs::path golden_case = kernel_case(kernel.name);
      const TempDir temp;
      copy_compiled(golden_case, temp / "compiled", true);
      CHECK((consolidated(temp / "compiled", temp / "whole") == read_model(golden_case / "original")));

      // optimum-neuron has it a level higher, next to config.json, and without the model's own keys.
      copy_compiled(golden_case, temp / "exported/checkpoint", false);
      fs::rename(temp / "exported/checkpoint/config.json", temp / "exported/config.json");
      write_file(temp / "exported/neuron_config.json",
                 json::parse(read_file(golden_case / "golden.json")).at("case").at("neuron").dump());
      CHECK((consolidated(temp / "exported/checkpoint", temp / "again") == read_model(golden_case / "original")));
    }
  }
}

TEST_CASE("Without neuron_config.json the shapes decide, and a square matrix is an error that names the option") {
  for (const KernelCase& kernel : kCases) {
    DYNAMIC_SECTION(kernel.name) {
      const fs::path golden_case = kernel_case(kernel.name);
      const TempDir temp;
      copy_compiled(golden_case, temp / "compiled", false);
      ConsolidateRequest request = consolidate_request(temp / "compiled", temp / "whole");
      if (kernel.is_square) {
        const Error error = error_of([&] { plan_consolidate(request); });
        CHECK(error.kind() == ErrorKind::kBadInput);
        CHECK(error.path() == (temp / "compiled/weights/tp0_sharded_checkpoint.safetensors").string());
        CHECK_THAT(error.what(), Says("is square, and nothing says whether it is transposed"));
        CHECK_THAT(error.hint(), Says("`from-kernels`"));
        request.source.options.set("kernels", kernel.kernels);
      }
      consolidate(request);
      CHECK((read_model(temp / "whole") == read_model(golden_case / "original")));
    }
  }
}

TEST_CASE("Weights for kernels are written tensor by tensor as NxD Inference has them, and come back") {
  for (const KernelCase& kernel : kCases) {
    DYNAMIC_SECTION(kernel.name) {
      const fs::path golden_case = kernel_case(kernel.name);
      const json golden = golden_of(golden_case);
      const TempDir temp;
      ShardRequest request = deployed_request(layout("nxdi"), golden_case / "original", temp / "out",
                                              golden.at("case").at("neuron").at("tp_degree").get<std::uint32_t>());
      request.target.options.set_flag("fuse-qkv", kernel.fuse_qkv);
      request.target.options.set("kernels", kernel.kernels);
      fs::create_directories(temp / "out");
      fs::copy_file(golden_case / "neuron_config.json", temp / "out/neuron_config.json");
      shard(request);
      json found = json::object();
      for (const auto& [file, tensors] : read_weights(temp / "out")) found[file] = describe_tensors(tensors);
      CHECK(found == golden.at("files"));

      // The files' own record says it, too.
      fs::remove(temp / "out/neuron_config.json");
      CHECK((consolidated(temp / "out", temp / "whole") == read_model(golden_case / "original")));
    }
  }
}

TEST_CASE("Fused linears of a training checkpoint become transposed ones, over other ranks and back") {
  const TempDir temp;
  TinyModel model;
  model.heads = model.kv_heads = 4;  // so that o_proj is square at one rank
  Random random(1);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  ShardRequest training = deployed_request(layout("ranks"), temp / "model", temp / "training", 2);
  training.target.options.set_flag("fuse-qkv", true);
  shard(training);
  for (const std::uint32_t tp : {1u, 3u}) {
    ConvertRequest request = convert_request(temp / "training", temp / ("compiled" + std::to_string(tp)));
    request.target.layout = layout("nxdi");
    request.target.tp = tp;
    request.target.options.set_flag("fuse-qkv", true);
    request.target.options.set("kernels", "mlp,qkv,out-proj");
    convert(request);
    CHECK((consolidated(request.output_directory, temp / "whole") == tensors));
  }
  ConvertRequest recut = convert_request(temp / "compiled3", temp / "recut");
  recut.target.layout = layout("nxdi");
  recut.target.tp = 2;
  recut.target.options.set("kernels", "mlp");
  convert(recut);
  CHECK((consolidated(temp / "recut", temp / "whole") == tensors));
}

TEST_CASE("Weights for kernels that cannot be read are refused by name") {
  struct Row {
    std::string name, message;
  };
  const Row rows[] = {
      {"skip_gamma-llama-tp2", "fused_rmsnorm_skip_gamma"},
      {"mlp_tkg-mlp_cp-llama-tp4", "has cp_degree 2: such a model has two sets"},
      {"attention_dp2-llama-tp4", "attention_dp_degree 2"},
  };
  for (const Row& row : rows) {
    DYNAMIC_SECTION(row.name) {
      const TempDir temp;
      copy_compiled(kernel_case(row.name), temp / "compiled", true);
      const Error error = error_of([&] { plan_consolidate(consolidate_request(temp / "compiled", temp / "whole")); });
      CHECK(error.kind() == ErrorKind::kUnsupported);
      CHECK_THAT(error.what(), Says(row.message));
      CHECK(error.path() == (temp / "compiled/neuron_config.json").string());
      // Names show two sets, too. Nothing shows that values were changed, which a note says.
      fs::remove(temp / "compiled/neuron_config.json");
      ConsolidateRequest request = consolidate_request(temp / "compiled", temp / "whole");
      if (row.name == "skip_gamma-llama-tp2") {
        CHECK_THAT(plan_consolidate(request)->notes.back(), Says("fused_rmsnorm_skip_gamma"));
        continue;
      }
      const Error by_name = error_of([&] { plan_consolidate(request); });
      CHECK(by_name.kind() == ErrorKind::kUnsupported);
      CHECK_THAT(by_name.what(), Says("is one of two sets of matrices"));
    }
  }
}

TEST_CASE("Kernels that contradict the shapes, the compiled model or the options are errors") {
  const fs::path golden_case = kernel_case("mlp-out-bias-llama-tp2");
  const TempDir temp;
  copy_compiled(golden_case, temp / "compiled", false);
  ConsolidateRequest request = consolidate_request(temp / "compiled", temp / "whole");
  request.source.options.set("kernels", "out-proj");
  const Error shape = error_of([&] { plan_consolidate(request); });
  CHECK(shape.kind() == ErrorKind::kBadInput);
  CHECK(shape.tensor() == "layers.0.mlp.gate_proj.weight");
  CHECK_THAT(shape.what(), Says("so it is transposed for NxD Inference's kernels, but"));

  request.source.options.set("kernels", "mlp,attention");
  const Error unknown = error_of([&] { plan_consolidate(request); });
  CHECK(unknown.kind() == ErrorKind::kUsage);
  CHECK_THAT(unknown.what(), Says("`from-kernels`: \"attention\" is none of NxD Inference's kernels"));

  ShardRequest plain = deployed_request(layout("nxdi"), golden_case / "original", temp / "traced", 2);
  fs::create_directories(temp / "traced");
  fs::copy_file(golden_case / "neuron_config.json", temp / "traced/neuron_config.json");
  const Error compiled = error_of([&] { plan_shard(plain); });
  CHECK(compiled.kind() == ErrorKind::kBadInput);
  CHECK(compiled.path() == (temp / "traced/neuron_config.json").string());
  CHECK_THAT(compiled.hint(), Says("with `kernels` mlp,out-proj"));

  plain.output_directory = temp / "out";
  plain.target.options.set("kernels", "qkv");
  const Error apart = error_of([&] { plan_shard(plain); });
  CHECK(apart.kind() == ErrorKind::kUsage);
  CHECK_THAT(apart.what(), Says("`kernels` qkv is for the fused projection alone"));
}

}  // namespace
}  // namespace reshard::test
