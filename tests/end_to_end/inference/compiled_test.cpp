// Rank files for models that NxD Inference has compiled: every family that it is known to load, and what its settings
// contradict. testdata/golden/nxdi_compiled is what its own classes have made.

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/specs/family/family_parser.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

fs::path compiled_case(const std::string& name) {
  return testdata("golden/nxdi_compiled") / name;
}

TEST_CASE("Models of every family that NxD Inference is known to load are sharded for it and come back") {
  std::size_t families = 0;
  for (const std::string& name : architecture_names()) {
    const auto family = builtin_family(name);
    if (family == nullptr || !family->inference_entries) continue;
    CAPTURE(name);
    ++families;
    const TempDir temp;
    const TensorMap tensors = write_architecture(architecture(name), temp / "model");
    for (const std::uint32_t tp : {1, 2}) {
      CAPTURE(tp);
      const fs::path out = temp / ("out" + std::to_string(tp)), whole = temp / ("whole" + std::to_string(tp));
      shard(temp / "model", out, {.layout = "nxdi", .tp = tp});
      CHECK((consolidated(out, whole) == tensors));
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
  refused({"shard-on-intermediate", "moe-fused-nki"}, {.kind = ErrorKind::kUnsupported, .says = "is not supported"});
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

TEST_CASE("A draft is read with a configuration of its own alone") {
  const TempDir temp;
  const fs::path golden_case = compiled_case("spec-fused-llama-tp2");
  fs::create_directories(temp / "both");
  fs::copy(golden_case / "weights", temp / "both/weights");
  fs::copy(golden_case / "neuron_config.json", temp / "both/neuron_config.json");
  check_refused([&] { consolidated(temp / "both", temp / "whole", {.source_options = {"fused-model=draft"}}); },
                {.kind = ErrorKind::kUsage, .says = "the draft has a configuration of its own", .hint = "`config`"});
}

TEST_CASE("A compiled model's settings are completed, and must not be contradicted") {
  const fs::path compiled = compiled_case("moe-qwen3_moe-ep2-tp4");
  TargetRequest request;
  request.layout = layout("ranks");
  CHECK(complete_for(all_files(), compiled, request, false) == DType::kBF16);
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
  const TempDir temp;
  check_refused([&] { complete_for(all_files(), temp.path(), other, false); },
                {.kind = ErrorKind::kBadInput, .path = temp.path(), .hint = "neuron_config.json"});
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
  refused("when", "no_such_setting", {.says = "\"when\" reads no_such_setting", .hint = "fused_qkv"});
}

}  // namespace
}  // namespace reshard::test
