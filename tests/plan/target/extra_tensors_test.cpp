// Tensors that config.json does not explain, such as a custom module's buffers: refused, kept or dropped.

#include <fmt/format.h>

#include <algorithm>

#include "reshard/plan/job/convert.h"
#include "reshard/plan/job/job.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kBuffer = "model.layers.1.self_attn.cache";
const std::string kCounter = "model.calls";

/// A llama with two buffers of its own.
struct Extended {
  Extended() {
    Random random(8);
    const TinyModel tiny;
    tensors = random_tensors(tiny, random);
    plain = tensors;
    tensors.emplace(kBuffer, TensorData{DType::kF32, {3}, "abcdefghijkl"});
    tensors.emplace(kCounter, TensorData{DType::kU8, {}, "x"});
    write_model(temp / "model", tiny, tensors);
  }
  ShardRequest request(const fs::path& output, const std::string& layout_name, ExtraTensors extra) const {
    ShardRequest request = shard_request(temp / "model", temp / output, 2, 1);
    request.target.layout = layout(layout_name);
    if (layout_name != "presharded") request.target.pp = 2;
    request.source.extra = extra;
    return request;
  }
  /// `name` consolidated.
  TensorMap back(const fs::path& name, ExtraTensors extra) const {
    ConsolidateRequest request;
    request.source.path = temp / name;
    request.source.config = temp / "model";
    request.source.extra = extra;
    request.output_directory = temp / "back";
    request.force = true;
    consolidate(request);
    return read_model(temp / "back");
  }

  TempDir temp;
  TensorMap tensors, plain;
};

bool says(const std::vector<std::string>& notes, const std::string& text) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST_CASE("A tensor that config.json does not explain is refused, and the hint says what keeps or drops it") {
  const Extended model;
  check_refused([&] { plan_shard(model.request("out", "ranks", ExtraTensors::kRefuse)); },
                {.says = kBuffer, .hint = "`extra-tensors` keeps"});
}

TEST_CASE("Extra tensors that are kept are whole on every rank of their stage, and come back as they were") {
  const Extended model;
  for (const std::string layout_name : {"ranks", "optimum", "nxd"}) {
    INFO(layout_name);
    const auto job = plan_shard(model.request(layout_name, layout_name, ExtraTensors::kKeep));
    CHECK(says(job->notes, "kept, though config.json does not explain them: " + kCounter + ", " + kBuffer));
    shard(model.request(layout_name, layout_name, ExtraTensors::kKeep));
    CHECK(model.back(layout_name, ExtraTensors::kKeep) == model.tensors);
    CHECK(model.back(layout_name, ExtraTensors::kDrop) == model.plain);
    check_refused([&] { model.back(layout_name, ExtraTensors::kRefuse); }, {.hint = "`extra-tensors`"});
  }
  const auto ranks = read_ranks(model.temp / "ranks");
  for (const char* rank : {"tp_rank_00_pp_rank_01", "tp_rank_01_pp_rank_01"})
    CHECK(ranks.at(rank).at(kBuffer) == model.tensors.at(kBuffer));
  CHECK(ranks.at("tp_rank_01_pp_rank_00").at(kCounter) == model.tensors.at(kCounter));
  CHECK(ranks.at("tp_rank_00_pp_rank_00").count(kBuffer) == 0);
}

TEST_CASE("Extra tensors that are dropped are named") {
  const Extended model;
  for (const std::string layout_name : {"ranks", "presharded"}) {
    INFO(layout_name);
    const auto job = plan_shard(model.request(layout_name, layout_name, ExtraTensors::kDrop));
    CHECK(says(job->notes, "left out, as config.json does not explain them: " + kCounter + ", " + kBuffer));
    shard(model.request(layout_name, layout_name, ExtraTensors::kDrop));
    CHECK(model.back(layout_name, ExtraTensors::kRefuse) == model.plain);
  }
  ConvertRequest request = convert_request(model.temp / "model", model.temp / "whole");
  request.source.extra = ExtraTensors::kDrop;
  convert(request);
  CHECK(read_model(model.temp / "whole") == model.plain);
}

TEST_CASE("Extra tensors are no excuse for tensors that are missing") {
  Extended model;
  model.tensors.erase("model.norm.weight");
  write_model(model.temp / "model", TinyModel{}, model.tensors);
  for (const ExtraTensors extra : {ExtraTensors::kKeep, ExtraTensors::kDrop})
    check_refused([&] { plan_shard(model.request("out", "ranks", extra)); }, {.tensor = "model.norm.weight"});
}

TEST_CASE("Layouts of inference engines and padded ranks have no place for extra tensors that are kept") {
  const Extended model;
  for (const char* name : {"nxdi", "vllm", "presharded"}) {
    CAPTURE(name);
    ShardRequest request = model.request("out", name, ExtraTensors::kKeep);
    request.target.pp.reset();
    request.target.options.set_flag("pad", name == std::string("presharded"));
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported, .says = {kBuffer, kCounter}});
    request.source.extra = ExtraTensors::kDrop;
    CHECK(says(plan_shard(request)->notes, "left out, as config.json does not explain them"));
  }
}

TEST_CASE("That there is no extra tensor is noted") {
  Extended model;
  write_model(model.temp / "model", TinyModel{}, model.plain);
  CHECK(says(plan_shard(model.request("out", "ranks", ExtraTensors::kKeep))->notes, "`extra-tensors` has no effect"));
}

TEST_CASE("Files of too few ranks without metadata give missing last ranks as the first guess") {
  const TempDir temp;
  TinyModel tiny;
  tiny.kv_heads = tiny.heads;
  Random random(9);
  write_model(temp / "model", tiny, random_tensors(tiny, random));
  ShardRequest request = shard_request(temp / "model", temp / "ranks", 4);
  request.target.layout = layout("nxd");
  shard(request);
  const auto rank_path = [&](int rank) {
    return temp / "ranks/model" / fmt::format("dp_rank_00_tp_rank_{:02}_pp_rank_00.pt", rank);
  };
  for (const int rank : {2, 3}) REQUIRE(fs::remove(rank_path(rank)));
  for (const int rank : {0, 1})
    write_saved_tree(rank_path(rank), read_saved_tree(rank_path(rank)));  // without a record
  ConsolidateRequest consolidation;
  consolidation.source.path = temp / "ranks";
  consolidation.source.config = temp / "model";
  consolidation.output_directory = temp / "out";
  check_refused([&] { plan_consolidate(consolidation); },
                {.hint = "the last ranks are missing: it is one of 4 parts, and there are 2 ranks"});
}

}  // namespace
}  // namespace reshard::test
