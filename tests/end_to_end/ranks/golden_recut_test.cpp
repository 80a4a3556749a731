// The optimizer of NxD's checkpoints on other meshes, against what the reference itself saves there.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Where a case has the checkpoint.
fs::path folder_of(const json& golden) {
  return golden.at("case").at("form") == "optimum" ? "checkpoint/shards" : "checkpoint/step_3";
}

/// A mesh as cases have it, without naming the layout: that is the source's.
ConvertRequest request_of(const fs::path& source, const fs::path& config, const fs::path& output, const json& mesh) {
  ConvertRequest request = convert_request(source, output);
  request.source.config = config;
  request.target.tp = mesh.at("tp");
  request.target.pp = mesh.at("pp");
  request.target.options.set_number("dp", mesh.at("dp"));
  if (mesh.at("xser")) request.target.format = Format::kXser;
  request.target.options.set_flag("fuse-qkv", mesh.at("fuse_qkv"));
  if (mesh.at("form") == "nxd") request.target.options.set("qkv-linear", mesh.at("qkv_linear") ? "on" : "off");
  if (mesh.at("kv_size_multiplier") != 1)
    request.target.options.set_number("kv-size-multiplier", mesh.at("kv_size_multiplier"));
  return request;
}

/// Path inside the dict → dtype, shape and hash. Without what 0-dim tensors are, as cases have them.
json described(const SavedTree& tree) {
  TensorMap tensors;
  for (const auto& [place, data] : tree.tensors)
    if (!data.shape.empty()) tensors.emplace(place, data);
  return describe_tensors(tensors);
}

/// The names of the parameters that each group's numbers are, as a case says.
json groups_of(const SavedTree& tree, const json& ids) {
  json groups = json::array();
  for (const auto& group : tree.structure.at("param_groups")) {
    json names = json::array();
    for (const auto& id : group.at("params")) names.push_back(ids.at(std::to_string(id.get<int>())));
    groups.push_back(names);
  }
  return groups;
}

bool is_optimizer(const std::string& path) {
  return path.find("/optim/") != path.npos && path.ends_with(".pt") && !path.ends_with(".info.pt");
}

/// What a case calls a file of the optimizer, below the folder `output`.
fs::path written_as(const fs::path& output, const std::string& path) {
  return output / "optim" / fs::path(path).filename();
}

/// Holds the optimizer's files in `output` against those of a case. Where the reference saved no master weights, ours
/// are there all the same.
void check_files(const fs::path& output, const json& expected, bool has_masters) {
  std::size_t files = 0;
  for (const auto& [path, tensors] : expected.at("files").items()) {
    if (!is_optimizer(path)) continue;
    INFO(path);
    ++files;
    const SavedTree tree = read_saved_tree(written_as(output, path));
    json written = described(tree);
    if (!has_masters)
      for (auto entry = written.begin(); entry != written.end();)
        entry = entry.key().starts_with("sharded_master_weights/") ? written.erase(entry) : std::next(entry);
    CHECK(written == tensors);
    const json& parameters = expected.at("parameters").at(rank_of_reference(path));
    CHECK(groups_of(tree, parameters.at("ids")) == parameters.at("groups"));
    CHECK(tree.structure.at("sharded_master_weights").size() == parameters.at("ids").size());
  }
  CHECK(files == read_saved_trees(output / "optim").size());
}

struct RecutCase {
  const char* name;
  const char* recut;
};
constexpr RecutCase kRecutCases[] = {{"nxd-llama-dp2-tp2", "recut-dp3-tp1-pp2.json"},
                                     {"nxd-llama-dp4-tp2-pp2", "recut-dp1-tp1.json"},
                                     {"nxd-llama-tied-dp2-tp4-m2-fused", "recut-dp3-tp2.json"}};

TEST_CASE("An optimizer that is cut anew is what the reference saves on that mesh, and comes back the same") {
  for (const RecutCase& one : kRecutCases) DYNAMIC_SECTION(one.name) {
      const fs::path golden_case = testdata("golden/zero1") / one.name;
      const json golden = golden_of(golden_case), recut = json::parse(read_file(golden_case / one.recut));
      const bool has_masters = golden.at("case").at("master");
      const TempDir temp;
      const auto before = snapshot(golden_case);
      const fs::path step = folder_of(golden);
      convert(request_of(golden_case / step, golden_case / "original", temp / "recut", recut.at("case")));
      check_files(temp / "recut", recut, has_masters);
      convert(request_of(temp / "recut", {}, temp / "back", golden.at("case")));
      check_files(temp / "back", golden, has_masters);
      CHECK(snapshot(golden_case) == before);
      for (const char* name : {"scheduler.pt", "user_content.pt"})
        CHECK(read_file(temp / "back" / name) == read_file(golden_case / step / name));

      for (const auto& [path, structure] : golden.at("structure").items()) {
        if (!is_optimizer(path)) continue;
        INFO(path);
        // In the reference's order; only that the master weights are always there.
        nlohmann::ordered_json written = read_saved_tree(written_as(temp / "back", path)).structure;
        const auto expected = nlohmann::ordered_json::parse(read_file(golden_case / "golden.json"));
        if (!has_masters) written.erase("sharded_master_weights");
        CHECK(written.dump(1) == expected.at("structure").at(path).dump(1));
      }
    }
}

/// The states of a file without its master weights.
json without_masters(const json& tensors) {
  json states = json::object();
  for (const auto& [place, data] : tensors.items())
    if (!place.starts_with("sharded_master_weights/")) states[place] = data;
  return states;
}

TEST_CASE(
    "Another number of data-parallel ranks gives the states of NxD's converter, and the master weights it loses") {
  std::size_t cases = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const json golden = golden_of(golden_case);
    if (!golden.contains("reference_conversion")) continue;
    ++cases;
    const bool has_masters = golden.at("case").at("master");
    for (const std::uint32_t dp : golden.at("case").at("new_dp")) {
      DYNAMIC_SECTION(golden_case.filename().string() << " to " << dp) {
        json mesh = golden.at("case");
        mesh["dp"] = dp;
        const TempDir temp;
        convert(request_of(golden_case / folder_of(golden), golden_case / "original", temp / "out", mesh));
        const json& theirs = golden.at("reference_conversion").at(fmt::format("dp{}", dp)).at("files");
        std::size_t files = 0;
        for (const auto& [path, tensors] : theirs.items()) {
          if (!is_optimizer(path)) continue;
          INFO(path);
          ++files;
          const json ours = described(read_saved_tree(written_as(temp / "out", path)));
          CHECK(without_masters(ours) == without_masters(tensors));
          // Theirs are the first rank's rows, cut once more (reference_conversion.against_logical).
          if (has_masters) CHECK(ours != tensors);
        }
        CHECK(files == read_saved_trees(temp / "out/optim").size());
        convert(request_of(temp / "out", {}, temp / "back", golden.at("case")));
        check_files(temp / "back", golden, has_masters);
      }
    }
  }
  CHECK(cases == 4);
}

TEST_CASE("What optimum-neuron has saved whole comes back from another mesh as its own code saved it") {
  const fs::path golden_case = testdata("golden/zero1/optimum-llama-dp1-tp4-m2-fused");
  const json golden = golden_of(golden_case);
  json mesh = golden.at("case");
  mesh["dp"] = 3;
  mesh["tp"] = 2;
  const TempDir temp;
  convert(request_of(golden_case / "checkpoint", {}, temp / "recut", mesh));
  convert(request_of(temp / "recut", {}, temp / "back", golden.at("case")));
  check_files(temp / "back/shards", golden, true);
}

}  // namespace
}  // namespace reshard::test
