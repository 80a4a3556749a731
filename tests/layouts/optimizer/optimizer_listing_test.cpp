#include "reshard/layouts/optimizer/optimizer_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "reshard/io/local_storage.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "support/files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;
namespace fs = std::filesystem;
using Items = std::vector<std::pair<std::string, std::string>>;

/// A dict whose keys are numbers.
std::string by_id(const std::map<int, std::string>& values) {
  std::string items = "}(";
  for (const auto& [id, value] : values) items += number(id) + value;
  return items + "u";
}

std::string rows(std::int64_t count) {
  return tensor({.shape = {count, 2}, .strides = {2, 1}});
}

std::string group(const std::string& decay, const std::vector<std::int64_t>& ids) {
  return dict({{"lr", number(1)}, {"weight_decay", decay}, {"params", numbers(ids)}});
}

/// Two parameters of 5 rows in two groups, of which a rank of two has three rows.
Items zero1() {
  const std::string state = dict({{"step", number(3)}, {"exp_avg", rows(3)}});
  return {{"state", dict({})},
          {"param_groups", list({group(number(1), {0}), group(number(0), {1})})},
          {"base_state", by_id({{0, state}, {1, state}})},
          {"shape_info", by_id({{0, numbers({5, 2})}, {1, numbers({5, 2})}})}};
}

Items with(const std::string& key, const std::string& value) {
  Items items = zero1();
  for (auto& [name, content] : items)
    if (name == key) content = value;
  if (std::none_of(items.begin(), items.end(), [&](const auto& item) { return item.first == key; }))
    items.emplace_back(key, value);
  std::erase_if(items, [](const auto& item) { return item.second.empty(); });
  return items;
}

/// The optimizer of a model on `tp` ranks.
struct Optimizer {
  explicit Optimizer(std::uint32_t tp = 1) { shards.tp = tp, shards.pp = 1; }

  fs::path file(int dp_rank, int tp_rank = 0) const {
    return temp /
           rank_name({static_cast<std::uint32_t>(tp_rank), 0, static_cast<std::uint32_t>(dp_rank)}, true).append(".pt");
  }
  void write(const fs::path& path, const Items& items) const {
    write_file(path, torch_zip(stream(dict(items)), {{"0", std::string(48, '\1')}}));
  }
  OptimizerFiles read() const {
    return read_optimizer_files(local_storage(), temp.path(), list_optimizer_files(local_storage(), temp.path()),
                                shards);
  }
  void refused(const fs::path& path, const std::string& says, ErrorKind kind = ErrorKind::kBadInput) const {
    const Error error = check_refused([&] { read(); }, {.kind = kind, .path = path, .says = says});
    INFO(error.what());
    CHECK_FALSE(error.hint().empty());
  }

  TempDir temp;
  ShardedCheckpoint shards;
};

/// Two data-parallel ranks.
struct TwoRanks : Optimizer {
  TwoRanks() {
    write(file(0), zero1());
    write(file(1), zero1());
  }
};

TEST_CASE("The optimizer's files of two data-parallel ranks are read with groups, states and shapes") {
  const TwoRanks optimizer;
  const OptimizerFiles files = optimizer.read();
  CHECK(files.dp == 2);
  CHECK(files.incomplete.empty());
  const OptimizerStage& first = files.stages[0];
  CHECK(first.form == OptimizerStage::Form::kZero1);
  REQUIRE(first.groups.size() == 2);
  CHECK(first.groups[1].count == 1);
  CHECK(first.num_dense() == 2);
  CHECK(first.groups[1].values == PlainValue::Dict{{"lr", {std::int64_t{1}}}, {"weight_decay", {std::int64_t{0}}}});
  REQUIRE(first.entries.size() == 2);
  CHECK(first.entries[1].numbers.front() == std::pair(std::string("step"), PlainValue{std::int64_t{3}}));
  REQUIRE(first.of_rank(0).size() == 2);
  REQUIRE(first.of_rank(1).size() == 2);
  const StateShard& shard = first.of_rank(1)[1];
  CHECK(shard.state() == "exp_avg");
  CHECK(shard.entry == 1);
  CHECK(shard.begin_row == 3);
  CHECK(shard.tensor.shape == Dims{3, 2});
  CHECK(files.files[shard.tensor.file].path == optimizer.file(1));
  CHECK(first.of_rank(2).empty());
  CHECK(first.entries[1].shape == Dims{5, 2});
}

TEST_CASE("Files of an optimizer that contradict themselves are refused with the place") {
  const TwoRanks optimizer;
  const auto refused = [&](const Items& items, const std::string& says, ErrorKind kind = ErrorKind::kBadInput) {
    optimizer.write(optimizer.file(1), items);
    optimizer.refused(optimizer.file(1), says, kind);
  };
  refused(with("param_groups", list({group(number(1), {0}), group(number(0), {2})})),
          "\"params\" of group 1 has id 2 instead of 1");
  refused(with("param_groups", list({group(number(1), {0})})), "\"base_state\" has id 1, but the groups have 1 param");
  refused(with("param_groups", list({dict({{"lr", number(1)}})})), "group 0 has no list \"params\"");
  refused(with("param_groups", list({dict({{"lr", rows(1)}, {"params", numbers({0, 1})}})})),
          "lr of group 0 is a tensor", ErrorKind::kUnsupported);
  refused(with("param_groups", ""), "has no \"param_groups\"");
  refused(with("base_state", by_id({{0, rows(3)}})), "base_state.0 is ");
  refused(with("base_state", by_id({{-1, dict({})}})), "a key of \"base_state\" is");
  refused(with("shape_info", by_id({{0, number(5)}})), "instead of the shape of id 0");
  refused(with("shape_info", by_id({{0, numbers({5, 2})}})), "id 1 has no shape, but the shape [5, 2]");
  refused(with("sharded_master_weights", by_id({{1, number(1)}})), "is an int, not a tensor");
  // One list of many values, under two names, is more than the file has.
  const std::string many = numbers(std::vector<std::int64_t>(60'000, 7)) + "q\x01";
  refused(with("param_groups", list({dict({{"a", many}, {"b", "h\x01"}, {"c", "h\x01"}, {"params", numbers({0})}}),
                                     group(number(0), {1})})),
          "contains the same values repeatedly");
  write_file(optimizer.file(1), torch_zip(stream(number(1)), {}));
  optimizer.refused(optimizer.file(1), "contains an int, not a dict");
}

TEST_CASE("Ranks of an optimizer that are not of one checkpoint are refused with what differs") {
  const TwoRanks optimizer;
  const auto refused = [&](const Items& items, const std::string& says) {
    optimizer.write(optimizer.file(1), items);
    optimizer.refused(optimizer.file(1), says);
  };
  const std::string other_step = dict({{"step", number(4)}, {"exp_avg", rows(3)}});
  const std::string state = dict({{"step", number(3)}, {"exp_avg", rows(3)}});
  refused(with("base_state", by_id({{0, state}, {1, other_step}})),
          "id 1 has F32 exp_avg, step = 4, but F32 exp_avg, step = 3 in dp_rank_00_tp_rank_00_pp_rank_00.pt");
  const std::string step_as_float =
      dict({{"step", std::string("G@\x08") + std::string(6, '\0')}, {"exp_avg", rows(3)}});
  refused(with("base_state", by_id({{0, state}, {1, step_as_float}})),
          "id 1 has F32 exp_avg, step = 3.0, but F32 exp_avg, step = 3 in");
  refused(with("base_state", by_id({{0, state}})), "id 1 has nothing, but");
  refused(with("param_groups", list({group(number(2), {0}), group(number(0), {1})})),
          "weight_decay of its parameter group 0 is 2, but 1 in dp_rank_00_tp_rank_00_pp_rank_00.pt");
  const std::string no_decay = dict({{"lr", number(1)}, {"params", numbers({0})}});
  refused(with("param_groups", list({no_decay, group(number(0), {1})})),
          "weight_decay of its parameter group 0 is missing, but 1 in dp_rank_00");
  const std::string reversed = dict({{"weight_decay", number(1)}, {"lr", number(1)}, {"params", numbers({0})}});
  refused(with("param_groups", list({reversed, group(number(0), {1})})),
          "its parameter group 0 has its values in another order than that in dp_rank_00");
  refused(with("param_groups", list({group(number(1), {0, 1})})), "has 1 parameter groups, unlike");
  refused(with("param_groups", list({group(number(1), {}), group(number(0), {0, 1})})),
          "its parameter group 0 has 0 parameters");
  refused(with("base_state", by_id({{0, dict({{"step", number(3)}, {"exp_avg", rows(2)}})}, {1, state}})),
          "exp_avg of id 0 has the shape [2, 2], but according to shape_info [5, 2] over 2 data-parallel ranks it has "
          "[3, 2]");
  Items whole = with("base_state", "");
  for (auto& [key, value] : whole)
    if (key == "state") value = by_id({{0, state}});
  refused(whole, "has no states of ZeRO-1, unlike");
}

TEST_CASE("Groups, hyperparameters and names of states without end are refused, however small the file is") {
  const Optimizer optimizer;
  const auto many_groups = [](std::size_t count) {
    std::string groups = "](" + dict({{"lr", number(1)}, {"params", numbers({})}}) + "q\x01";
    for (std::size_t g = 1; g < count; ++g) groups += "h\x01";
    return with("param_groups", groups + "e");
  };
  const auto many_names = [](std::size_t second) {
    Items a, b;
    for (std::size_t s = 0; s < 32; ++s) a.emplace_back(fmt::format("a{}", s), number(1));
    for (std::size_t s = 0; s < second; ++s) b.emplace_back(fmt::format("b{}", s), rows(5));
    return with("base_state", by_id({{0, dict(a)}, {1, dict(b)}}));
  };
  Items values{{"params", numbers({0, 1})}};
  for (int key = 0; key < 1000; ++key) values.emplace_back(fmt::format("k{}", key), number(1));
  const auto refused = [&](const Items& items, const Refusal& refusal) {
    optimizer.write(optimizer.file(0), items);
    check_refused([&] { optimizer.read(); }, with_common(refusal, {.path = optimizer.file(0)}));
  };
  refused(many_groups(10'001), {.says = "its \"param_groups\" has 10001 groups, but at most 10000 are supported"});
  refused(many_groups(10'000), {.says = "\"base_state\" has id 0, but the groups have 0 parameters"});
  refused(with("param_groups", list({dict(values)})),
          {.says = "group 0 has 1001 hyperparameters, but at most 1000 are supported", .hint = " "});
  refused(many_names(33), {.tensor = "b32", .says = "one of more than 64"});
  optimizer.write(optimizer.file(0), many_names(32));
  CHECK(optimizer.read().stages[0].shards.size() == 32);
}

TEST_CASE("A hyperparameter is read though it is the very list of parameters") {
  const Optimizer optimizer;
  const std::string shared = dict({{"params", numbers({0, 1}) + "q\x01"}, {"same", "h\x01"}});
  optimizer.write(optimizer.file(0), with("param_groups", list({shared})));
  const OptimizerFiles files = optimizer.read();
  REQUIRE(files.stages[0].groups[0].values.size() == 1);
  CHECK(files.stages[0].groups[0].values[0].first == "same");
}

TEST_CASE("Missing ranks of an optimizer are named, and the number of ranks that shards are of") {
  const TwoRanks optimizer;
  optimizer.write(optimizer.file(3), zero1());
  optimizer.refused(optimizer.temp.path(),
                    "1 of the optimizer's 4 files (tp 1 × pp 1 × dp 4) is missing: "
                    "dp_rank_02_tp_rank_00_pp_rank_00");
  fs::remove(optimizer.file(3));
  const std::string state = dict({{"step", number(3)}, {"exp_avg", rows(2)}});
  for (const int dp_rank : {0, 1}) optimizer.write(optimizer.file(dp_rank), with("base_state", by_id({{0, state}})));
  optimizer.refused(optimizer.file(0), "over 2 data-parallel ranks it has [3, 2]");
  CHECK_THAT(error_of([&] { optimizer.read(); }).hint(), Says("the shards belong to 3 data-parallel ranks"));
  const auto hint = [&](const std::string& moment) {
    const std::string other = dict({{"step", number(3)}, {"exp_avg", moment}});
    for (const int dp_rank : {0, 1}) optimizer.write(optimizer.file(dp_rank), with("base_state", by_id({{0, other}})));
    return error_of([&] { optimizer.read(); }).hint();
  };
  CHECK_THAT(hint(rows(4)), Says("or the run used context parallelism"));
  CHECK_THAT(hint(tensor({.shape = {3, 1}, .strides = {1, 1}})),
             Says("the file is damaged, or belongs to a run of another model"));
  const fs::path twin = optimizer.temp / "tp_rank_00_pp_rank_00.pt";  // of data-parallel rank 0, too
  optimizer.write(twin, zero1());
  optimizer.refused(twin, "belongs to the same rank as dp_rank_00_tp_rank_00_pp_rank_00.pt");
  fs::remove(twin);
  optimizer.write(optimizer.file(0, 1), zero1());
  optimizer.refused(optimizer.file(0, 1), "belongs to tp rank 1, pp rank 0, but the model has tp 1 × pp 1 ranks");
}

TEST_CASE("One data-parallel rank's part that was saved as if it were all is known for what it is") {
  const Optimizer optimizer;
  optimizer.write(optimizer.file(0), zero1());
  CHECK_THAT(optimizer.read().incomplete,
             Says("the ZeRO-1 shard of one data-parallel rank was saved as if it were complete (exp_avg of id 0 has 3 "
                  "of 5 rows, the share of one of 2 ranks)"));
  CHECK_THAT(optimizer.read().incomplete_hint,
             Says("such as dp_rank_01, copy them here; otherwise the weights are complete"));
  Optimizer alone;
  alone.shards.lacks_weights = true;
  alone.write(alone.file(0), zero1());
  CHECK_THAT(alone.read().incomplete_hint, Says("such as dp_rank_01: no other file contains the weights"));
}

TEST_CASE("A moment or master weights without dims are refused, but not a step") {
  const Optimizer optimizer;
  const std::string scalar = tensor({.shape = {}, .strides = {}});
  const auto write = [&](const std::string& name) {
    const std::string one = dict({{"step", scalar}, {name, scalar}});
    optimizer.write(optimizer.file(0), with("base_state", by_id({{0, one}, {1, one}})));
  };
  write("clipped");
  CHECK_NOTHROW(optimizer.read());
  for (const std::string name : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}) {
    write(name);
    optimizer.refused(
        optimizer.file(0),
        name + " of id 0 is a tensor without dims, but according to shape_info its parameter has the shape [5, 2]");
  }
  optimizer.write(optimizer.file(0), with("sharded_master_weights", by_id({{0, scalar}})));
  optimizer.refused(optimizer.file(0), "of id 0 is a tensor without dims");
}

/// An optimizer of two parameters of one shape, in groups of these sizes.
OptimizerFiles grouped(const std::vector<std::uint32_t>& counts) {
  OptimizerFiles files;
  OptimizerStage& file = files.stages.emplace_back();
  file.path = "optim/file.pt";
  files.paths = {file.path};
  files.folder = "optim";
  for (const std::uint32_t count : counts) {
    file.groups.push_back({{}, count, static_cast<std::uint32_t>(file.entries.size())});
    for (std::uint32_t i = 0; i < count; ++i) {
      file.entries.emplace_back();
      file.entries.back().shape = Dims{4};
    }
  }
  file.first_expert_group = static_cast<std::uint32_t>(counts.size());
  return files;
}

TEST_CASE("Numbers become names by the rule that fits the groups, and where several do somebody has to say which") {
  using Names = std::vector<std::vector<std::string>>;
  using Parameters = std::vector<std::vector<LocalParameter>>;
  const Parameters three{{{"q_norm", {4}}, {"a.bias", {4}}, {"layernorm", {4}}}};
  const Parameters two{{{"q_norm", {4}}, {"k.RMSNorm", {4}}}};
  const auto names = [](const OptimizerFiles& files, const Parameters& parameters, std::optional<GroupRule> rule = {}) {
    return names_of_entries(files, parameters, rule, "");
  };
  const OptimizerFiles pair = grouped({1, 1});
  CHECK(names(grouped({3}), three) == Names{{"q_norm", "a.bias", "layernorm"}});
  CHECK(names(grouped({1, 2}), three) == Names{{"q_norm", "a.bias", "layernorm"}});
  CHECK(names(grouped({2, 1}), three) == Names{{"q_norm", "layernorm", "a.bias"}});
  CHECK(names(pair, two, GroupRule::kNorms) == Names{{"k.RMSNorm", "q_norm"}});
  CHECK(names(pair, two, GroupRule::kLayerNorms) == Names{{"q_norm", "k.RMSNorm"}});
  check_refused([&] { names(pair, three); },
                {.path = "optim/file.pt",
                 .says = "its parameter group 0 has 1 parameters, but according to rule norms the model's file has 0",
                 .hint = "no rule of `from-optimizer-groups` fits"});
  check_refused([&] { names(pair, two); }, {.kind = ErrorKind::kUsage,
                                            .path = "optim",
                                            .says = "the groups fit rule norms as well as rule layernorms",
                                            .hint = "`from-optimizer-groups`"});
  check_refused([&] { names(pair, two, GroupRule::kOne); }, {.hint = "another `from-optimizer-groups` may fit"});
  OptimizerFiles other = grouped({1, 2});
  other.stages[0].entries[2].shape = Dims{5};
  check_refused([&] { names(other, three); },
                {.says = "id 2 has the shape [5], but according to rule layernorms it is layernorm"});
}

TEST_CASE("Ids are taken where the model has parameters of their shapes, of ZeRO-1 with nothing lost") {
  const std::vector<std::vector<LocalParameter>> parameters{{{"frozen", {9}}, {"a", {4}}, {"b", {4}}}};
  CHECK(names_by_id(grouped({1, 1}), parameters) == std::vector<std::vector<std::string>>{{"0", "1"}});
  const Refusal file{.path = "optim/file.pt", .hint = " "};
  const Refusal folder{.kind = ErrorKind::kUnsupported, .path = "optim", .hint = " "};
  const auto refused = [&](const Refusal& common, const std::string& says, const auto& change) {
    OptimizerFiles files = grouped({1, 1});
    change(files);
    check_refused([&] { names_by_id(files, parameters); }, with_common({.says = says}, common));
  };
  refused(file,
          "id 0 has the shape [4], as 3 of its ids have, but the model's files of pp rank 0 have 2 parameters of that",
          [](OptimizerFiles& files) {
            files = grouped({2, 1});
          });
  refused(
      file,
      "id 1 has the shape [5], as 1 of its ids has, but the model's files of pp rank 0 have no parameter of that shape",
      [](OptimizerFiles& files) { files.stages[0].entries[1].shape = Dims{5}; });
  refused(with_common({.kind = ErrorKind::kUnsupported}, file),
          "has no state of id 1 from which its shape could be inferred",
          [](OptimizerFiles& files) { files.stages[0].entries[1].shape.reset(); });
  refused(folder, "the optimizer is not a ZeRO-1 optimizer",
          [](OptimizerFiles& files) { files.stages[0].form = OptimizerStage::Form::kWhole; });
  refused(folder, "lost master weights", [](OptimizerFiles& files) { files.lost_masters = true; });
  refused(folder, "the optimizer is one of 2 expert-parallel ranks", [](OptimizerFiles& files) { files.ep = 2; });
  refused(folder, "the optimizer's files have names, and no ids",
          [](OptimizerFiles& files) { files.stages[0].entries[0].name = "a"; });
}

TEST_CASE("Ids stay where every rank holds the same parts of the same tensors, else the first other one is named") {
  // Tensors "a" and "c" of rank 0, and what else is there.
  const auto map_of =
      []<typename Map = TargetMap>(const std::vector<std::string>& names, std::uint64_t rows = 4, Map map = {}) {
    map.files.emplace_back().path = "f";
    for (const std::string& name : names) map.add_whole(map.add_stored({name, DType::kF32, {rows}}), name);
    return map;
  };
  const SourceMap source = map_of({"a", "c"}, 4, SourceMap());
  CHECK_NOTHROW(validate_same_ranks(source, map_of({"c", "a"})));
  for (const auto& [target, tensor] : {std::pair(map_of({"a"}), "c"),
                                       {map_of({"a", "b", "c"}), "b"},
                                       {map_of({"a", "c", "d"}), "d"},
                                       {map_of({"c", "d"}), "a"},
                                       {map_of({"a", "c"}, 5), "a"},
                                       {map_of({}), "a"}})
    check_refused(
        [&, other = target] { validate_same_ranks(source, other); },
        {.kind = ErrorKind::kUsage, .tensor = tensor, .says = "tp_rank_00_pp_rank_00 would contain other parts of it"});
}

TEST_CASE("Groups are made anew by a rule, and have what their parameters had") {
  const PlainValue::Dict decays{{"weight_decay", PlainValue(0.5)}}, stays{{"weight_decay", PlainValue(0.0)}};
  using Names = std::vector<std::string>;
  const std::vector<OptimizerGroup> one{{decays, {"q_norm", "w", "a.bias"}}};
  const auto norms = regrouped(one, GroupRule::kNorms, "");
  REQUIRE(norms.size() == 2);
  CHECK(norms[0].parameters == Names{"w"});
  CHECK(norms[1].parameters == Names{"q_norm", "a.bias"});
  CHECK((norms[0].values == decays && norms[1].values == decays));

  const std::vector<OptimizerGroup> three{{decays, {"w"}}, {stays, {"a.bias"}}, {stays, {"b.bias"}}, {stays, {}}};
  const auto bias = regrouped(three, GroupRule::kBias, "");
  REQUIRE(bias.size() == 2);
  CHECK((bias[0].parameters == Names{"w"} && bias[0].values == decays));
  CHECK((bias[1].parameters == Names{"a.bias", "b.bias"} && bias[1].values == stays));

  const std::vector<OptimizerGroup> four{{decays, {"q_norm", "w", "input_layernorm", "a.Bias"}}};
  CHECK(regrouped(four, GroupRule::kLayerNorms, "")[0].parameters == Names{"q_norm", "w"});
  CHECK(regrouped(four, GroupRule::kLayerNorms, "llama")[0].parameters == Names{"w"});
  CHECK(regrouped(four, GroupRule::kNorms, "llama")[0].parameters == Names{"w", "a.Bias"});

  const auto empty = regrouped(std::vector<OptimizerGroup>{{stays, {}}, {decays, {"w"}}}, GroupRule::kBias, "");
  REQUIRE(empty.size() == 2);
  CHECK((empty[1].parameters.empty() && empty[1].values == decays));

  check_refused([&] { regrouped(three, GroupRule::kOne, ""); },
                {.kind = ErrorKind::kUnsupported,
                 .tensor = "a.bias",
                 .says = "in one group with w, but in the source it has the hyperparameters of group 1",
                 .hint = "choose another `optimizer-groups`"});
}

}  // namespace
}  // namespace reshard::test
