// Weights of models that were compiled with NxD Inference's kernels are stored transposed. testdata/golden/nxdi_kernels
// is what NxD Inference's own classes wrote, with the neuron_config.json that says so.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
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

fs::path kernel_case(const std::string& name) {
  for (const fs::path& found : golden_cases("nxdi_kernels"))
    if (found.filename() == name) return found;
  FAIL("no golden case " << name);
  return {};
}

/// The compiled folder of a case as users have it, with the model's config.json unless that is given.
void copy_compiled(const fs::path& golden_case, const fs::path& directory, bool with_neuron_config) {
  fs::create_directories(directory);
  fs::copy(golden_case / "weights", directory / "weights");
  fs::copy_file(golden_case / "original/config.json", directory / "config.json");
  if (with_neuron_config) fs::copy_file(golden_case / "neuron_config.json", directory / "neuron_config.json");
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

TEST_CASE("Kernels that contradict the shapes, the compiled model or the options are errors") {
  const fs::path golden_case = kernel_case("mlp-out-bias-llama-tp2");
  const TempDir temp;
  copy_compiled(golden_case, temp / "compiled", false);
  ConsolidateRequest request = consolidate_request(temp / "compiled", temp / "whole");
  request.source.options.set("kernels", "out-proj");
  check_refused([&] { plan_consolidate(request); }, {.tensor = "layers.0.mlp.gate_proj.weight",
                                                     .says = "so it is transposed for NxD Inference's kernels, but"});

  request.source.options.set("kernels", "mlp,attention");
  check_refused(
      [&] { plan_consolidate(request); },
      {.kind = ErrorKind::kUsage, .says = "`from-kernels`: \"attention\" is none of NxD Inference's kernels"});

  ShardRequest plain = deployed_request(layout("nxdi"), golden_case / "original", temp / "traced", 2);
  fs::create_directories(temp / "traced");
  fs::copy_file(golden_case / "neuron_config.json", temp / "traced/neuron_config.json");
  check_refused([&] { plan_shard(plain); },
                {.path = temp / "traced/neuron_config.json", .hint = "with `kernels` mlp,out-proj"});

  plain.output_directory = temp / "out";
  plain.target.options.set("kernels", "qkv");
  check_refused([&] { plan_shard(plain); },
                {.kind = ErrorKind::kUsage, .says = "`kernels` qkv is for the fused projection alone"});
}

}  // namespace
}  // namespace reshard::test
