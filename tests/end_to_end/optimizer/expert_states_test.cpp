// The optimizer of a model whose experts are spread over expert-parallel ranks, as NeuronEPZero1Optimizer saves it
// (neuronx_distributed/optimizer/zero_redundancy_optimizer.py): files that the test writes, of slices that it makes.

#include <fmt/format.h>

#include <tuple>

#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/saved_file.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using namespace pickles;

bool is_expert(const std::string& name) {
  return name.find(".experts.") != name.npos || name.find(".expert_mlps.") != name.npos;
}

bool decays(const std::string& name) {
  return name.find("norm") == name.npos && name.find("bias") == name.npos;
}

/// Rows [begin, begin + count), those beyond the last one of zeros.
TensorData padded_rows(const TensorData& data, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t row_bytes = data.bytes.size() / data.shape[0];
  TensorData result{data.dtype, data.shape, std::string(count * row_bytes, '\0')};
  result.shape[0] = count;
  for (std::uint64_t row = 0; row < count && begin + row < data.shape[0]; ++row)
    result.bytes.replace(row * row_bytes, row_bytes, data.bytes, (begin + row) * row_bytes, row_bytes);
  return result;
}

struct Experts {
  FamilyCase c;
  TensorMap weights, moments;
  std::uint32_t tp, ep, dp;
  bool zero1;
  std::string layout = "optimum";
  std::vector<std::string> options{};  // of the layout
};

fs::path shards_of(const Experts& run, const fs::path& directory) {
  return run.layout == "optimum" ? directory / "shards" : directory;
}

std::string rank_name_of(const Experts& run, std::uint32_t ep_rank, std::uint32_t tp_rank) {
  const std::string ep = run.layout == "optimum" || run.ep > 1 ? fmt::format("ep_rank_{:02}_", ep_rank) : "";
  return fmt::format("{}tp_rank_{:02}_pp_rank_00.pt", ep, tp_rank);
}

/// What a rank holds of the moment of a parameter. \param moments  the rank files of a model that is the moments.
TensorData local_moment(const Experts& run, const fs::path& moments, const std::string& name, std::uint32_t ep_rank,
                        std::uint32_t tp_rank) {
  if (run.layout != "optimum")
    return read_saved_tree(moments / "model" / ("dp_rank_00_" + rank_name_of(run, ep_rank, tp_rank))).tensors.at(name);
  for (const auto& entry : run.c.json["tensors"])
    if (entry["name"] == name)
      return rank_part(run.c, entry, *expert_part(name, run.moments.at(name), run.ep, ep_rank), run.tp, tp_rank);
  FAIL(name);
  return {};
}

std::string plain_list(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(number(value));
  return list(items);
}

/// The optimizer's file of a rank.
void write_optimizer(const Experts& run, const fs::path& shards, std::uint32_t dp_rank, std::uint32_t tp_rank) {
  const std::uint32_t ep_rank = dp_rank % run.ep;
  const std::string rank = rank_name_of(run, ep_rank, tp_rank);
  const bool has_expert_groups = run.zero1 && run.ep > 1;
  std::vector<std::string> groups[4];  // without and with decay, then those of experts
  const SavedTree model = read_saved_tree(shards / "model" / ("dp_rank_00_" + rank));
  for (const auto& [name, value] : model.structure.items())
    groups[(has_expert_groups && is_expert(name) ? 2 : 0) + (decays(name) ? 0 : 1)].push_back(name);
  SavedFile file;
  std::vector<std::string> states, shapes, param_groups;
  std::int64_t id = 0, dense = 0;
  for (int g = 0; g < (has_expert_groups ? 4 : 2); ++g) {
    if (g == 2) dense = std::exchange(id, 0);
    std::vector<std::int64_t> ids;
    for (const std::string& name : groups[g]) {
      const TensorData local = local_moment(run, shards.parent_path() / "moments-run", name, ep_rank, tp_rank);
      const std::uint64_t count = !run.zero1 ? 1 : g < 2 ? run.dp : run.dp / run.ep;
      const std::uint64_t share = !run.zero1 ? 0 : g < 2 ? dp_rank : dp_rank / run.ep;
      const std::uint64_t rows = (local.shape[0] + count - 1) / count;
      const std::string moment = file.tensor(padded_rows(local, share * rows, rows));
      states.push_back(dict({{"step", number(3)}, {"exp_avg", moment}}));
      shapes.push_back(plain_list({local.shape.begin(), local.shape.end()}));
      ids.push_back(id++);
    }
    param_groups.push_back(
        dict({{"lr", number(1)}, {"weight_decay", number(g % 2 ? 0 : 1)}, {"params", plain_list(ids)}}));
  }
  const fs::path own = shards / "optim" / fmt::format("dp_rank_{:02}_tp_rank_{:02}_pp_rank_00.pt", dp_rank, tp_rank);
  if (run.zero1 && !has_expert_groups)
    file.save(own, dict({{"state", dict({})},
                         {"param_groups", list(param_groups)},
                         {"base_state", numbered(states)},
                         {"shape_info", numbered(shapes)}}));
  else if (run.zero1)
    file.save(own, dict({{"ep_param_id_offset", number(1)},
                         {"ep_param_group_offset", number(2)},
                         {"ep_base_state_offset", number(dense)},
                         {"ep_shape_info_offset", number(dense)},
                         {"param_groups", list(param_groups)},
                         {"state", dict({})},
                         {"base_state", numbered(states)},
                         {"shape_info", numbered(shapes)}}));
  else
    file.save(shards / "optim" / ("dp_rank_00_" + rank),
              dict({{"state", numbered(states)}, {"param_groups", list(param_groups)}}));
}

/// A checkpoint with the optimizer beside the model.
void write_run(const Experts& run, const TempDir& temp) {
  const RequestFields fields{
      .layout = run.layout, .format = Format::kPytorch, .tp = run.tp, .ep = run.ep, .options = run.options};
  shard(temp / "model", temp / "run", fields);
  if (run.layout != "optimum") {
    write_case(run.c, temp / "moments");
    write_safetensors(temp / "moments/model.safetensors", run.moments);
    shard(temp / "moments", temp / "moments-run", fields);
  }
  const fs::path shards = shards_of(run, temp / "run");
  fs::create_directory(shards / "optim");
  for (std::uint32_t d = 0; d < (run.zero1 ? run.dp : run.ep); ++d)
    for (std::uint32_t t = 0; t < run.tp; ++t) write_optimizer(run, shards, d, t);
}

/// The optimizer's files are those of the run, but for master weights, which NxD saves without expert-parallel ranks.
void check_same_optimizer(const Experts& run, const TempDir& temp) {
  auto written = read_saved_trees(shards_of(run, temp / "out") / "optim");
  const auto expected = read_saved_trees(shards_of(run, temp / "run") / "optim");
  REQUIRE(written.size() == expected.size());
  for (auto& [file, tree] : written) {
    CAPTURE(file);
    CHECK(tree.structure.erase("sharded_master_weights") == (run.ep == 1 ? 1 : 0));
    std::erase_if(tree.tensors, [](const auto& one) { return one.first.starts_with("sharded_master_weights"); });
    CHECK(tree.structure == expected.at(file).structure);
    CHECK((tree.tensors == expected.at(file).tensors));
  }
}

Experts experts_of(const char* family, const TempDir& temp, std::uint32_t tp, std::uint32_t ep, std::uint32_t dp,
                   bool zero1, const std::string& layout = "optimum", const std::vector<std::string>& options = {}) {
  Experts run{with_six_experts(family), {}, {}, tp, ep, dp, zero1, layout, options};
  run.weights = write_case(run.c, temp / "model");
  Random random(11);
  for (const auto& [name, data] : run.weights) run.moments[name] = random_tensor(random, DType::kF32, data.shape);
  write_run(run, temp);
  return run;
}

Request to_layout(const TempDir& temp, const char* layout = "dcp") {
  return convert_request(temp / "run", temp / "out", {.layout = layout, .with_optimizer = true});
}

TEST_CASE("States of experts on expert-parallel ranks, and of all else over all data-parallel ranks, come together") {
  using Mesh = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>;
  for (const char* family : {"qwen3_moe", "mixtral", "gpt_oss", "dbrx"})
    for (const auto& [tp, ep, dp, zero1] :
         {Mesh{1, 2, 2, true}, {2, 2, 4, true}, {1, 3, 6, true}, {2, 3, 3, true}, {2, 2, 2, false}}) {
      DYNAMIC_SECTION(family << ", tp " << tp << ", ep " << ep << ", dp " << dp << (zero1 ? "" : ", no ZeRO-1")) {
        const TempDir temp;
        const Experts run = experts_of(family, temp, tp, ep, dp, zero1);
        convert(to_layout(temp));
        const dcp::Content content = dcp::read(temp / "out");
        for (const auto& [name, data] : run.moments) {
          CAPTURE(name);
          CHECK((content.tensors.at("optimizer.state." + name + ".exp_avg") == data));
        }
        for (const auto& [name, data] : run.weights) CHECK((content.tensors.at(name) == data));
      }
    }
}

TEST_CASE("States of experts are refused where data-parallel ranks are missing") {
  const TempDir temp;
  experts_of("qwen3_moe", temp, 1, 2, 4, true);
  const fs::path optim = temp / "run/shards/optim";
  fs::remove(optim / "dp_rank_03_tp_rank_00_pp_rank_00.pt");
  check_refused([&] { plan_convert(to_layout(temp)); },
                {.path = optim, .says = "3 data-parallel ranks cannot share 2 expert-parallel ranks"});
  fs::remove(optim / "dp_rank_02_tp_rank_00_pp_rank_00.pt");
  check_refused([&] { plan_convert(to_layout(temp)); },
                {.path = optim / "dp_rank_00_tp_rank_00_pp_rank_00.pt",
                 .hint = "the shards belong to 4 data-parallel ranks: copy the files of all of them"});
}

TEST_CASE("States of experts are written as they were saved, and on other ranks with the groups that these have") {
  for (const char* family : {"qwen3_moe", "dbrx"}) {
    DYNAMIC_SECTION(family) {
      const TempDir temp;
      const Experts run = experts_of(family, temp, 1, 2, 4, true);
      Request request = to_layout(temp, "optimum");
      convert(request);
      check_same_optimizer(run, temp);
      request = convert_request(temp / "run", temp / "whole", {.layout = "optimum", .ep = 1, .with_optimizer = true});
      convert(request);
      const SavedTree whole = read_saved_tree(temp / "whole/shards/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt");
      CHECK(whole.structure.at("param_groups").size() == 2);
    }
  }
}

TEST_CASE("States of modules with names of their own come together, and are written as they were saved") {
  struct Row {
    const char* family;
    std::uint32_t tp, ep, dp;
    std::vector<std::string> options{};
  };
  const std::vector<std::string> megatron{"model-source=megatron", "make-vocab-size-divisible-by=9"};
  for (const auto& [family, tp, ep, dp, options] :
       {Row{"mixtral", 2, 1, 2}, Row{"mixtral", 2, 1, 4}, Row{"mixtral", 2, 2, 4}, Row{"mixtral", 1, 3, 6},
        Row{"dbrx", 2, 1, 3}, Row{"dbrx", 2, 2, 2, {"i-tp-round-factor=5"}}, Row{"mixtral", 2, 1, 3, megatron},
        Row{"mixtral", 2, 1, 2, {"model-source=megatron", "make-vocab-size-divisible-by=1"}}}) {
    DYNAMIC_SECTION(family << ", tp " << tp << ", ep " << ep << ", dp " << dp << ", options " << options.size()) {
      const TempDir temp;
      const Experts run = experts_of(family, temp, tp, ep, dp, true, "nxd", options);
      RequestFields fields{.layout = "dcp", .config = temp / "model", .with_optimizer = true};
      convert(temp / "run", temp / "out", fields);
      const dcp::Content content = dcp::read(temp / "out");
      for (const auto& [name, data] : run.moments) {
        CAPTURE(name);
        CHECK((content.tensors.at("optimizer.state." + name + ".exp_avg") == data));
      }
      fs::remove_all(temp / "out");
      fields.layout = "nxd";
      fields.format = Format::kPytorch;
      fields.options = options;
      convert(temp / "run", temp / "out", fields);
      check_same_optimizer(run, temp);
      if (ep > 1) continue;  // no master weights
      fields = {.config = temp / "model", .source_options = {"weights=master"}};
      CHECK((converted(temp / "out", temp / "masters", fields) ==
             converted(temp / "model", temp / "wide", {.dtype = DType::kF32})));
    }
  }
}

TEST_CASE("States of experts are refused for ranks that cannot share them, and in xser") {
  const TempDir temp;
  experts_of("qwen3_moe", temp, 1, 2, 4, true);
  Request request = to_layout(temp, "optimum");
  request.target.options.set_number("dp", 3);
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUsage,
                 .says = "`dp`: 3 data-parallel ranks cannot share 2 expert-parallel ranks",
                 .hint = "choose a `dp` that `ep` divides"});
  request = to_layout(temp, "optimum");
  request.target.format = Format::kXser;
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUnsupported,
                 .says = "how NxD stores states of 2 expert-parallel ranks in xser is unknown",
                 .hint = "set `ep` 1 or `format` pytorch, or leave out `with-optimizer`"});
}

}  // namespace
}  // namespace reshard::test
