// The plans against what the reference wrote for the same model and options.
#include <algorithm>

#include "reshard/base/json.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_plan.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct GoldenCase {
  fs::path directory;
  Json json;
  Model model;
  Mesh mesh;
  PartitionOptions options;

  explicit GoldenCase(const fs::path& at) : directory(at), json(Json::parse(read_file(at / "golden.json"))) {
    const ModelConfig config = read_model_config(at / "original");
    model = instantiate(config);
    const Json& given = json["case"];
    mesh = {given["tp"].get<std::uint32_t>(), given["pp"].get<std::uint32_t>(), given["vpp"].get<std::uint32_t>()};
    options.attention = attention_form_of(false, given["fuse_qkv"].get<bool>());
    if (!given["kv_multiplier"].is_null()) options.kv_size_multiplier = given["kv_multiplier"].get<std::uint64_t>();
  }

  std::vector<StagePlan> plan() const {
    const auto cuts = json["pipeline_cuts"].get<std::vector<std::string>>();
    return plan_stages(model, mesh.tp, partition_by_cuts(model.layers, mesh, cuts, model.family->layers), options,
                       [&](const std::string& name) { return json["original"].contains(name); });
  }

  fs::path metadata_path(std::size_t pp_rank) const {
    return directory / "sharded" / "shards" / metadata_file_name(static_cast<std::uint32_t>(pp_rank));
  }
};

TEST_CASE("Planned metadata is equal as JSON to what the reference wrote, with parameters in its order") {
  for (const fs::path& directory : golden_cases("optimum")) {
    const GoldenCase golden(directory);
    INFO(directory.filename().string());
    const std::vector<StagePlan> plans = golden.plan();
    REQUIRE(plans.size() == golden.mesh.pp);
    for (std::size_t y = 0; y < plans.size(); ++y) {
      INFO("pipeline rank " << y);
      const auto reference = OrderedJson::parse(read_file(golden.metadata_path(y)));
      CHECK(Json::parse(metadata_text(plans[y].metadata)) == Json(reference));
      std::vector<std::string> expected, planned;
      for (const auto& [name, value] : reference["parameters"].items()) expected.push_back(name);
      for (const ParallelParameter& parameter : plans[y].metadata.parameters) planned.push_back(parameter.name);
      CHECK(planned == expected);
    }
    CHECK_FALSE(fs::exists(golden.metadata_path(plans.size())));
    std::vector<std::string> cuts;
    for (const std::uint64_t layer : partition_evenly(golden.model.layers, golden.mesh).cuts())
      cuts.push_back("model.layers." + std::to_string(layer));
    CHECK(golden.json["pipeline_cuts"].get<std::vector<std::string>>() == cuts);
  }
}

TEST_CASE("Every tensor that the reference stored is planned, by itself or as a second name") {
  const std::vector<fs::path> cases = golden_cases("optimum");
  REQUIRE(cases.size() >= 9);
  for (const fs::path& directory : cases) {
    const GoldenCase golden(directory);
    INFO(directory.filename().string());
    const std::vector<StagePlan> plans = golden.plan();
    const Json& files = golden.json["files"];
    CHECK(files.size() == std::size_t{golden.mesh.tp} * golden.mesh.pp);
    for (const auto& [file, tensors] : files.items()) {
      INFO(file);
      REQUIRE_THAT(file, Says("_pp_rank_"));
      const StagePlan& plan = plans.at(std::stoul(file.substr(file.find("_pp_rank_") + 9)));
      std::vector<std::string> stored, planned;
      for (const auto& [name, tensor] : tensors.items()) stored.push_back(name);
      for (const ParallelParameter& parameter : plan.metadata.parameters) planned.push_back(parameter.name);
      for (const TiedParameter& tied : plan.tied) planned.push_back(tied.name);
      std::sort(planned.begin(), planned.end());
      CHECK(planned == stored);
    }
  }
}

}  // namespace
}  // namespace reshard::test
