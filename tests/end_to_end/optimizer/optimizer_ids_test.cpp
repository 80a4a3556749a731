// Optimizers of which nobody knows which parameters their ids are, from some data-parallel ranks to others, against
// slices that the test makes itself.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/saved_trees.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Trees = std::map<std::string, SavedTree>;

std::string key_of(std::size_t id) {
  return fmt::format("int {}", id);
}

/// Leaves the parameters `frozen` out, and puts the others into groups of these sizes, which no rule makes.
SavedTree without(const SavedTree& whole, const std::set<std::size_t>& frozen, bool has_masters, Random shuffle) {
  std::vector<std::size_t> ids;
  for (std::size_t id = 0; id < whole.structure.at("shape_info").size(); ++id)
    if (frozen.count(id) == 0) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), shuffle);
  SavedTree tree;
  tree.structure = whole.structure;
  std::vector<std::string> dicts{"base_state", "shape_info", "sharded_master_weights"};
  if (!has_masters) {
    tree.structure.erase("sharded_master_weights");
    dicts.pop_back();
  }
  for (const std::string& dict : dicts) {
    Json all = Json::object();
    for (std::size_t id = 0; id < ids.size(); ++id) {
      if (!whole.structure.at(dict).contains(key_of(ids[id]))) continue;
      all[key_of(id)] = whole.structure.at(dict).at(key_of(ids[id]));
      const std::string from = fmt::format("{}/{}", dict, ids[id]), to = fmt::format("{}/{}", dict, id);
      for (const auto& [place, data] : whole.tensors)
        if (place == from || place.starts_with(from + "/")) tree.tensors[to + place.substr(from.size())] = data;
    }
    tree.structure[dict] = all;
  }
  Json group = whole.structure.at("param_groups").at(0);
  tree.structure["param_groups"] = Json::array();
  const std::size_t first = ids.size() / 3;
  for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>(0, first), {first, ids.size()}}) {
    group["params"] = Json::array();
    for (std::size_t id = begin; id < end; ++id) group["params"].push_back(id);
    tree.structure["param_groups"].push_back(group);
  }
  return tree;
}

/// The same of all ranks.
Trees without(const Trees& whole, const std::set<std::size_t>& frozen, bool has_masters, std::uint64_t seed) {
  Trees trees;
  for (const auto& [path, tree] : whole) trees[path] = without(tree, frozen, has_masters, Random(seed));
  return trees;
}

/// A run's model on ranks, with an optimizer that fits no rule.
struct Unnamed {
  explicit Unnamed(std::uint64_t seed) : random(seed), run(random_training(random, random_model(random))) {
    mesh = legal_options(random, run.model);
    choose_qkv_linear(random, run.model, mesh);
    dp = pick(random, 1, 4);
    format = random() % 3 == 0 ? Format::kXser : Format::kPytorch;
    frozen = {0, static_cast<std::size_t>(pick(random, 1, 3))};
    has_masters = random() % 2;
    write_dcp(temp / "dcp", run, random, false);
    write_file(temp / "dcp/config.json", run.model.config().dump());
    Request request = request_of(temp / "dcp", temp / "in", dp);
    request.target.format = format;
    request.source.options.erase("optimizer-groups");
    convert(request);
    fs::remove_all(temp / "in/optim");
    for (const auto& [path, tree] : expected(dp))
      write_saved_tree(temp / "in/optim" / path, tree, format == Format::kXser);
  }

  Trees expected(std::uint64_t ranks) const {
    return without(expected_optimizer(run, mesh, ranks, temp / "in/model"), frozen, has_masters, 1);
  }

  Request request_of(const fs::path& source, const fs::path& output, std::uint64_t ranks) const {
    Request request = convert_request(source, output, {.layout = "nxd", .source_options = {"optimizer-groups=ids"}});
    set_target(request.target, mesh);
    request.target.options.set_number("dp", ranks);
    if (source != temp / "dcp" && mesh.kv_size_multiplier != 0)
      request.source.options.set_number("kv-size-multiplier", mesh.kv_size_multiplier);
    return request;
  }

  Random random;
  TrainingRun run;
  OracleOptions mesh;
  std::uint64_t dp;
  Format format;
  std::set<std::size_t> frozen;
  bool has_masters;
  TempDir temp;
};

TEST_CASE("Ids go from any data-parallel ranks to any others, whatever parameters they are") {
  for (const std::uint64_t seed : seeds(30)) {
    CAPTURE(seed);
    Unnamed unnamed(seed);
    const std::uint64_t dp = pick(unnamed.random, 1, 5);
    CAPTURE(unnamed.mesh.tp, unnamed.mesh.pp, unnamed.mesh.vpp, unnamed.dp, dp, unnamed.has_masters);
    const fs::path output = unnamed.temp / "out";
    const Request request = unnamed.request_of(unnamed.temp / "in", output, dp);
    CHECK((joined_notes(*plan_convert(request)).find("as in the source, there are no master weights") !=
           std::string::npos) == !unnamed.has_masters);
    convert(request);
    check_saved_trees(output / "optim", unnamed.expected(dp));
    const Trees model = read_saved_trees(unnamed.temp / "in/model"), copy = read_saved_trees(output / "model");
    REQUIRE(copy.size() == model.size());
    for (const auto& [path, tree] : model) CHECK((copy.at(path).tensors == tree.tensors));
  }
}

TEST_CASE("Ids stay only where the model's ranks do, and names are not asked for") {
  const Unnamed unnamed(2);
  const std::uint32_t other_tp = unnamed.mesh.tp == 1 ? 2 : 1;
  const auto to_dcp = [](Request& request) {
    request.source.with_optimizer = true;
    request.target = {};
    request.target.layout = layout("dcp");
  };
  check_refusals<std::function<void(Request&)>>(
      [&](const std::function<void(Request&)>& change) {
        Request request = unnamed.request_of(unnamed.temp / "in", unnamed.temp / "out", 2);
        change(request);
        const Error error = error_of([&] { convert(request); });
        CHECK_FALSE(error.hint().empty());
        throw error;
      },
      {.kind = ErrorKind::kUsage, .unwritten = unnamed.temp / "out"},
      {{"no ids, where no rule fits",
        [](Request& request) { request.source.options.erase("optimizer-groups"); },
        {.kind = ErrorKind::kBadInput, .hint = "if only `dp` changes, `from-optimizer-groups` ids needs no names"}},
       {"other ranks",
        [&](Request& request) {
          request.target.tp = other_tp;
          request.target.options.erase("kv-size-multiplier");
        },
        {.says = "tp_rank_00_pp_rank_00 would contain other parts of it than in the source"}},
       {"dcp", to_dcp, {.says = "layout dcp has names instead of ids"}},
       {"dcp in names that do not have all of this source",
        [&](Request& request) {
          to_dcp(request);
          request.target.options.set("names", "torchtitan");
        },
        {.says = "layout dcp has names instead of ids"}},
       {"master weights",
        [](Request& request) { request.source.options.set("weights", "master"); },
        {.says = "master weights cannot be used as the model's without names"}},
       {"other names",
        [](Request& request) {
          request.names.renames.push_back(parse_rename("rename", "model.norm.weight=model.last.weight"));
        },
        {.kind = ErrorKind::kUnsupported}},
       {"other groups",
        [](Request& request) { request.target.options.set("optimizer-groups", "norms"); },
        {.says = "without names, no rule can determine the group of a parameter"}},
       {"ids of the target",
        [](Request& request) { request.target.options.set("optimizer-groups", "ids"); },
        {.hint = "it applies to the source: `from-optimizer-groups`"}}});
}

TEST_CASE("Another order of heads, which names and shapes do not show, is not what ids are of") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-tied-dp2-tp4-m2-fused");
  const TempDir temp;
  const auto to_nxd = [&](const std::string& order) {
    convert(golden_case / "checkpoint/step_3", temp / "out",
            {.layout = "nxd",
             .options = {"fuse-qkv", "kv-size-multiplier=2", "dp=4", "kv-replication=" + order},
             .config = golden_case / "original",
             .source_options = {"optimizer-groups=ids"}});
  };
  check_refused([&] { to_nxd("adjacent"); }, {.kind = ErrorKind::kUsage,
                                              .says = "would contain other parts of it than in the source",
                                              .unwritten = temp / "out"});
  to_nxd("tiled");
  CHECK(fs::exists(temp / "out/optim/dp_rank_03_tp_rank_03_pp_rank_00.pt"));
}

TEST_CASE("Buffers that a family says are not trained have no number, though they are floats") {
  for (const char* name : {"gpt_neox_masks", "gpt2_hub"}) {
    DYNAMIC_SECTION(name) {
      const TempDir temp;
      Random random(4);
      const TensorMap weights = write_case(family_case(name), temp / "model");
      const TrainingRun run = one_step(random, weights);
      REQUIRE(run.states.at("exp_avg").size() < weights.size());
      write_dcp(temp / "dcp", run, random, false);
      fs::copy(temp / "model/config.json", temp / "dcp/config.json");
      const RequestFields nxd{.layout = "nxd", .tp = 1, .with_optimizer = true};
      convert(temp / "dcp", temp / "nxd", nxd);
      convert(temp / "nxd", temp / "back", {.layout = "dcp", .with_optimizer = true});
      const auto trained = [](const fs::path& directory) {
        const TrainingStates states = read_checkpoint(directory, {.beside = Beside::kRead}).states;
        std::set<std::string> parameters;
        for (std::size_t i = 0; i < states.of.size(); ++i) parameters.emplace(states.of[i].parameter);
        return parameters;
      };
      CHECK(trained(temp / "back") == trained(temp / "dcp"));
      CHECK(trained(temp / "nxd").size() == run.states.at("exp_avg").size());
      merge_json(temp / "nxd/config.json",  // a plan does not say which tensors are buffers
                 {{"model_type", "unknown"}, {"base_model_tp_plan", nlohmann::json::object()}});
      CHECK(trained(temp / "nxd").size() == run.states.at("exp_avg").size());
    }
  }
}

}  // namespace
}  // namespace reshard::test
