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
  return name.find(".experts.") != name.npos;
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
};

/// What a rank holds of the moment of a parameter.
TensorData local_moment(const Experts& run, const std::string& name, std::uint64_t ep_rank, std::uint64_t tp_rank) {
  for (const auto& entry : run.c.json["tensors"])
    if (entry["name"] == name)
      return rank_part(run.c, entry, *expert_part(name, run.moments.at(name), run.ep, ep_rank), run.tp, tp_rank);
  FAIL(name);
  return {};
}

/// The optimizer's file of a rank.
void write_optimizer(const Experts& run, const fs::path& shards, std::uint32_t dp_rank, std::uint32_t tp_rank) {
  const std::uint32_t ep_rank = dp_rank % run.ep;
  const std::string rank = fmt::format("ep_rank_{:02}_tp_rank_{:02}_pp_rank_00.pt", ep_rank, tp_rank);
  std::vector<std::string> groups[4];  // without and with decay, then those of experts
  const SavedTree model = read_saved_tree(shards / "model" / ("dp_rank_00_" + rank));
  for (const auto& [name, value] : model.structure.items())
    groups[(run.zero1 && is_expert(name) ? 2 : 0) + (decays(name) ? 0 : 1)].push_back(name);
  SavedFile file;
  std::vector<std::string> states, shapes, param_groups;
  std::int64_t id = 0, dense = 0;
  for (int g = 0; g < (run.zero1 ? 4 : 2); ++g) {
    if (g == 2) dense = std::exchange(id, 0);
    std::vector<std::int64_t> ids;
    for (const std::string& name : groups[g]) {
      const TensorData local = local_moment(run, name, ep_rank, tp_rank);
      const std::uint64_t count = !run.zero1 ? 1 : g < 2 ? run.dp : run.dp / run.ep;
      const std::uint64_t share = !run.zero1 ? 0 : g < 2 ? dp_rank : dp_rank / run.ep;
      const std::uint64_t rows = (local.shape[0] + count - 1) / count;
      const std::string moment = file.tensor(padded_rows(local, share * rows, rows));
      states.push_back(dict({{"step", number(3)}, {"exp_avg", moment}}));
      shapes.push_back(numbers({local.shape.begin(), local.shape.end()}));
      ids.push_back(id++);
    }
    param_groups.push_back(
        dict({{"lr", number(1)}, {"weight_decay", number(g % 2 ? 0 : 1)}, {"params", numbers(ids)}}));
  }
  if (run.zero1)
    file.save(shards / "optim" / fmt::format("dp_rank_{:02}_tp_rank_{:02}_pp_rank_00.pt", dp_rank, tp_rank),
              dict({{"ep_param_id_offset", number(1)},
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

/// A checkpoint of optimum-neuron's layout with the optimizer beside the model.
void write_run(const Experts& run, const TempDir& temp) {
  shard(temp / "model", temp / "run", {.layout = "optimum", .format = Format::kPytorch, .tp = run.tp, .ep = run.ep});
  fs::create_directory(temp / "run/shards/optim");
  for (std::uint32_t d = 0; d < (run.zero1 ? run.dp : run.ep); ++d)
    for (std::uint32_t t = 0; t < run.tp; ++t) write_optimizer(run, temp / "run/shards", d, t);
}

Experts experts_of(const char* family, const TempDir& temp, std::uint32_t tp, std::uint32_t ep, std::uint32_t dp,
                   bool zero1) {
  Experts run{with_six_experts(family), {}, {}, tp, ep, dp, zero1};
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

TEST_CASE("States of experts are not written for expert-parallel ranks") {
  const TempDir temp;
  experts_of("qwen3_moe", temp, 1, 2, 2, true);
  Request request = to_layout(temp, "optimum");
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUnsupported,
                 .says = "states of the optimizer are not written for 2 expert-parallel ranks",
                 .hint = "set `ep` 1, or leave out `with-optimizer`"});  // the 2 are the source's
  request.target.ep = 1;
  convert(request);
  CHECK(fs::exists(temp / "out/shards/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"));
}

}  // namespace
}  // namespace reshard::test
