// The plans against what the reference wrote for the same model and options.
#include <algorithm>

#include "reshard/base/json.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/stage_plan.h"
#include "support/catch.h"
#include "support/files.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

struct GoldenCase {
  fs::path directory;
  Json json;
  Model model;
  Mesh mesh;
  PartitionOptions options;

  explicit GoldenCase(const fs::path& at) : directory(at), json(Json::parse(test::read_file(at / "golden.json"))) {
    const ModelConfig config = read_model_config(at / "original");
    model = instantiate(find_family(config), config);
    const Json& given = json["case"];
    mesh = {given["tp"].get<std::uint32_t>(), given["pp"].get<std::uint32_t>(), given["vpp"].get<std::uint32_t>()};
    options.fuse_qkv = given["fuse_qkv"].get<bool>();
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

/// Calls `check` with every case and its plans. Returns how many there are.
template <typename Check>
std::size_t for_every_case(Check&& check) {
  std::size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(test::testdata("golden/optimum"))) {
    INFO(entry.path().filename().string());
    const GoldenCase golden(entry.path());
    const std::vector<StagePlan> plans = golden.plan();
    REQUIRE(plans.size() == golden.mesh.pp);
    check(golden, plans);
    ++cases;
  }
  return cases;
}

TEST_CASE("Planned metadata is equal as JSON to what the reference wrote") {
  const auto cases = for_every_case([](const GoldenCase& golden, const std::vector<StagePlan>& plans) {
    for (std::size_t y = 0; y < plans.size(); ++y) {
      INFO("pipeline rank " << y);
      CHECK(Json::parse(metadata_text(plans[y].metadata)) == Json::parse(test::read_file(golden.metadata_path(y))));
    }
    CHECK_FALSE(fs::exists(golden.metadata_path(plans.size())));
  });
  CHECK(cases >= 9);
}

TEST_CASE("Planned parameters come in the reference's order") {
  const auto cases = for_every_case([](const GoldenCase& golden, const std::vector<StagePlan>& plans) {
    for (std::size_t y = 0; y < plans.size(); ++y) {
      INFO("pipeline rank " << y);
      std::vector<std::string> expected, planned;
      const auto reference = nlohmann::ordered_json::parse(test::read_file(golden.metadata_path(y)));
      for (const auto& [name, value] : reference["parameters"].items()) expected.push_back(name);
      for (const ParallelParameter& parameter : plans[y].metadata.parameters) planned.push_back(parameter.name);
      CHECK(planned == expected);
    }
  });
  CHECK(cases >= 9);
}

TEST_CASE("Planned metadata read back from the reference's file is the plan itself") {
  const auto cases = for_every_case([](const GoldenCase& golden, const std::vector<StagePlan>& plans) {
    for (std::size_t y = 0; y < plans.size(); ++y) {
      StageMetadata sorted = plans[y].metadata;
      std::sort(sorted.parameters.begin(), sorted.parameters.end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
      CHECK(read_metadata(golden.metadata_path(y)) == sorted);
    }
  });
  CHECK(cases >= 9);
}

TEST_CASE("Every tensor that the reference stored is planned, by itself or as a second name") {
  const auto cases = for_every_case([](const GoldenCase& golden, const std::vector<StagePlan>& plans) {
    std::size_t files = 0;
    for (const auto& [file, tensors] : golden.json["files"].items()) {
      INFO(file);
      const auto at = file.find("_pp_rank_");
      REQUIRE(at != std::string::npos);
      const StagePlan& plan = plans.at(std::stoul(file.substr(at + 9)));
      std::vector<std::string> stored, planned;
      for (const auto& [name, tensor] : tensors.items()) stored.push_back(name);
      for (const ParallelParameter& parameter : plan.metadata.parameters) planned.push_back(parameter.name);
      for (const TiedParameter& tied : plan.tied) planned.push_back(tied.name);
      std::sort(planned.begin(), planned.end());
      CHECK(planned == stored);
      ++files;
    }
    CHECK(files == golden.mesh.tp * golden.mesh.pp);
  });
  CHECK(cases >= 9);
}

TEST_CASE("The reference's cuts are those of the even partition") {
  const auto cases = for_every_case([](const GoldenCase& golden, const std::vector<StagePlan>&) {
    std::vector<std::string> cuts;
    for (const std::uint64_t layer : partition_evenly(golden.model.layers, golden.mesh).cuts())
      cuts.push_back("model.layers." + std::to_string(layer));
    CHECK(golden.json["pipeline_cuts"].get<std::vector<std::string>>() == cuts);
  });
  CHECK(cases >= 9);
}

}  // namespace
}  // namespace reshard
