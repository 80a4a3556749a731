// Tensors that config.json does not explain, such as a custom module's buffers: refused, kept or dropped.

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/saved_trees.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kBuffer = "model.layers.1.self_attn.cache";
const std::string kCounter = "model.calls";

/// A llama with two buffers of its own.
struct Extended {
  Extended() {
    tensors.emplace(kBuffer, TensorData{DType::kF32, {3}, "abcdefghijkl"});
    tensors.emplace(kCounter, TensorData{DType::kU8, {}, "x"});
    write_model(temp / "model", {}, tensors);
  }
  Request request(const std::string& layout_name, ExtraTensors extra) const {
    RequestFields fields{.layout = layout_name, .tp = 2};
    if (layout(layout_name)->traits().has_stages()) fields.pp = 2;
    Request request = shard_request(temp / "model", temp / layout_name, fields);
    request.source.extra = extra;
    return request;
  }
  /// `name` consolidated.
  TensorMap back(const fs::path& name, ExtraTensors extra) const {
    Request request = consolidate_request(temp / name, temp / "back", {.config = temp / "model", .force = true});
    request.source.extra = extra;
    consolidate(request);
    return read_model(temp / "back");
  }

  Input input{{}, {}, 8};
  const TempDir& temp = input.temp;
  const TensorMap& plain = input.tensors;
  TensorMap tensors = plain;
};

TEST_CASE("A tensor that config.json does not explain is refused, and the hint says what keeps or drops it") {
  const Extended model;
  check_refused([&] { plan_shard(model.request("ranks", ExtraTensors::kRefuse)); },
                {.says = kBuffer, .hint = "set `extra-tensors`"});
}

TEST_CASE("Extra tensors that are kept are whole on every rank of their stage, and come back as they were") {
  const Extended model;
  for (const std::string layout_name : {"ranks", "optimum", "nxd"}) {
    INFO(layout_name);
    const Request request = model.request(layout_name, ExtraTensors::kKeep);
    CHECK_THAT(joined_notes(*plan_shard(request)),
               Says("kept, though config.json does not explain them: " + kCounter + ", " + kBuffer));
    shard(request);
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

TEST_CASE("An extra tensor without a name is not written to ranks, which could not be read") {
  Extended model;
  model.tensors.emplace("", model.tensors.at(kBuffer));
  write_model(model.temp / "model", {}, model.tensors);
  for (const std::string layout_name : {"ranks", "optimum", "nxd"})
    check_refused([&] { plan_shard(model.request(layout_name, ExtraTensors::kKeep)); },
                  {.says = "a tensor has no name", .hint = "`extra-tensors` drop leaves it out"});
}

TEST_CASE("Extra tensors stay in whole checkpoints, with a note") {
  const Extended model;
  for (const std::string layout_name : {"hf", "dcp"}) {
    INFO(layout_name);
    Request request = convert_request(model.temp / "model", model.temp / layout_name, {.layout = layout_name});
    CHECK_THAT(joined_notes(*plan_convert(request)),
               Says("config.json does not explain these tensors: " + kCounter + ", " + kBuffer));
    request.source.extra = ExtraTensors::kKeep;
    const std::string kept = joined_notes(*plan_convert(request));
    CHECK_THAT(kept, Says("kept, though config.json does not explain them"));
    CHECK_THAT(kept, !Says("config.json does not explain these tensors"));
    convert(request);
  }
  CHECK(read_model(model.temp / "hf") == model.tensors);
}

TEST_CASE("Extra tensors that are dropped are named") {
  const Extended model;
  for (const std::string layout_name : {"ranks", "presharded"}) {
    INFO(layout_name);
    const Request request = model.request(layout_name, ExtraTensors::kDrop);
    CHECK_THAT(joined_notes(*plan_shard(request)),
               Says("left out, as config.json does not explain them: " + kCounter + ", " + kBuffer));
    shard(request);
    CHECK(model.back(layout_name, ExtraTensors::kRefuse) == model.plain);
  }
  Request request = convert_request(model.temp / "model", model.temp / "whole");
  request.source.extra = ExtraTensors::kDrop;
  convert(request);
  CHECK(read_model(model.temp / "whole") == model.plain);
}

TEST_CASE("Extra tensors are no excuse for tensors that are missing") {
  Extended model;
  model.tensors.erase("model.norm.weight");
  write_model(model.temp / "model", {}, model.tensors);
  for (const ExtraTensors extra : {ExtraTensors::kKeep, ExtraTensors::kDrop})
    check_refused([&] { plan_shard(model.request("ranks", extra)); }, {.tensor = "model.norm.weight"});
}

TEST_CASE("Layouts of inference engines and padded ranks have no place for extra tensors that are kept") {
  const Extended model;
  for (const std::string name : {"nxdi", "vllm", "presharded"}) {
    CAPTURE(name);
    Request request = model.request(name, ExtraTensors::kKeep);
    request.target.options.set_flag("pad", name == "presharded");
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported, .says = {kBuffer, kCounter}});
    request.source.extra = ExtraTensors::kDrop;
    CHECK_THAT(joined_notes(*plan_shard(request)), Says("left out, as config.json does not explain them"));
  }
}

TEST_CASE("That there is no extra tensor is noted") {
  const Extended model;
  write_model(model.temp / "model", {}, model.plain);
  CHECK_THAT(joined_notes(*plan_shard(model.request("ranks", ExtraTensors::kKeep))),
             Says("`extra-tensors` has no effect"));
}

TEST_CASE("Files of too few ranks without metadata give missing last ranks as the first guess") {
  const Input input({.kv_heads = 4}, {.layout = "nxd", .tp = 4}, 9);
  for (const std::uint32_t rank : {2, 3}) REQUIRE(fs::remove(input.rank_file(rank)));
  for (const std::uint32_t rank : {0, 1})
    write_saved_tree(input.rank_file(rank), read_saved_tree(input.rank_file(rank)));  // without a record
  check_refused(
      [&] { plan_consolidate(consolidate_request(input.path(), input / "whole", {.config = input / "model"})); },
      {.hint = "the last ranks are missing: it is one of 4 parts, and there are 2 ranks"});
}

TEST_CASE("Extra tensors with the names of fused weights are refused where no metadata tells them apart") {
  const Input input;
  TensorMap tensors = input.tensors;
  for (const std::string name :
       {"model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.self_attn.qkv_proj.x", "rank_util.rank"}) {
    CAPTURE(name);
    TensorMap more = tensors;
    more[name] = {DType::kF32, {3}, "abcdefghijkl"};
    write_model(input / "model", {}, more);
    Request request = shard_request(input / "model", input / "out", {.layout = "presharded", .tp = 2});
    request.source.extra = ExtraTensors::kKeep;
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported,
                                                 .tensor = name,
                                                 .says = "has the name of fused weights",
                                                 .hint = "`rename`",
                                                 .unwritten = input / "out"});
  }
}

}  // namespace
}  // namespace reshard::test
