// Folders of shards as optimum-neuron leaves them: what is missing, what is too much, what was cut off.

#include <algorithm>

#include "reshard/formats/torch/xser.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/plan/job/job.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A llama in the layout optimum, tp 2 × pp 2.
struct Optimum {
  TempDir temp;
  fs::path shards = temp / "out/shards";

  explicit Optimum(Format format = Format::kPytorch) {
    Random random(21);
    TinyModel model;
    model.layers = 4;
    write_model(temp / "model", model, random_tensors(model, random));
    ShardRequest request = shard_request(temp / "model", temp / "out", 2, 2);
    request.target.layout = layout("optimum"), request.target.format = format;
    shard(request);
  }
  fs::path rank(int tp_rank, int pp_rank) const {
    return shards / "model" /
           ("dp_rank_00_tp_rank_0" + std::to_string(tp_rank) + "_pp_rank_0" + std::to_string(pp_rank) + ".pt");
  }
  ConsolidateRequest request() const {
    ConsolidateRequest request;
    request.source.path = temp / "out";
    request.output_directory = temp / "whole";
    return request;
  }
  Error planning_error() const {
    const Error error = error_of([&] { plan_consolidate(request()); });
    INFO(error.what());
    return error;
  }
};

bool has_note(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return note.find(part) != note.npos; });
}

TEST_CASE("Ranks of optimum that are missing are listed by name, all of them") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Optimum optimum(format);
    fs::remove(optimum.rank(1, 0));
    Error error = optimum.planning_error();
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == optimum.shards.string());
    CHECK_THAT(error.what(), Says("1 of the 4 ranks (tp 2 × pp 2) is missing: dp_rank_00_tp_rank_01_pp_rank_00"));
    fs::remove(optimum.rank(0, 1));
    error = optimum.planning_error();
    CHECK_THAT(error.what(), Says("2 of the 4 ranks"));
    CHECK_THAT(error.what(), Says("dp_rank_00_tp_rank_01_pp_rank_00, dp_rank_00_tp_rank_00_pp_rank_01"));
  }
}

TEST_CASE("A whole stage or the last tp ranks of optimum are noticed by the metadata") {
  const Optimum stage;
  for (const int tp_rank : {0, 1}) fs::remove(stage.rank(tp_rank, 1));
  CHECK_THAT(stage.planning_error().what(), Says("2 of the 4 ranks"));
  fs::remove(stage.shards / "mp_metadata_pp_rank_1.json");
  // Its metadata gone too, the stage that is left is still short of the model's layers.
  CHECK(stage.planning_error().kind() == ErrorKind::kBadInput);

  const Optimum last;
  for (const int pp_rank : {0, 1}) fs::remove(last.rank(1, pp_rank));
  CHECK_THAT(last.planning_error().what(), Says("2 of the 4 ranks (tp 2 × pp 2) are missing"));
}

TEST_CASE("Shards without the file done are read, with a warning that the save may have been cut off") {
  const Optimum optimum;
  CHECK_FALSE(has_note(plan_consolidate(optimum.request())->notes, "done"));
  fs::remove(optimum.shards / "done");
  CHECK(has_note(plan_consolidate(optimum.request())->notes, "has no file \"done\""));
  CHECK_NOTHROW(consolidate(optimum.request()));
  fs::remove(optimum.shards / "checkpoint");  // NxD's own shards have neither
  fs::remove_all(optimum.temp / "whole");
  CHECK_FALSE(has_note(plan_consolidate(optimum.request())->notes, "done"));
}

TEST_CASE("Expert-parallel ranks are unsupported by file, whichever number they have") {
  for (const char* name :
       {"dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt", "dp_rank_00_ep_rank_03_tp_rank_01_pp_rank_01.pt"}) {
    const Optimum optimum;
    fs::copy_file(optimum.rank(0, 0), optimum.shards / "model" / name);
    check_error(optimum.planning_error(), {.kind = ErrorKind::kUnsupported,
                                           .path = optimum.shards / "model" / name,
                                           .says = "expert-parallel",
                                           .hint = "Hugging Face model"});
  }
}

TEST_CASE("A tensor that xser says is split over experts is unsupported, by file and tensor") {
  const Optimum optimum(Format::kXser);
  const fs::path info = xser_info_path(optimum.rank(0, 0));
  std::string text = read_file(info);
  const std::size_t key = text.find("expert_model_parallel");
  REQUIRE(key != std::string::npos);
  text[text.find('\x89', key)] = '\x88';  // false to true
  write_file(info, text);
  const Error error = optimum.planning_error();
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.path() == optimum.rank(0, 0).string());
  CHECK_FALSE(error.tensor().empty());
  CHECK_THAT(error.what(), Says("expert-parallel"));
  CHECK_THAT(error.hint(), Says("Hugging Face model"));
}

TEST_CASE("Two checkpoints in one directory are refused, but either folder can be given") {
  const Optimum optimum;
  shard(shard_request(optimum.temp / "model", optimum.temp / "out2", 2));
  fs::rename(optimum.temp / "out2/tensor_parallel_shards", optimum.temp / "out/tensor_parallel_shards");
  check_error(optimum.planning_error(), {.path = optimum.temp / "out", .says = "holds two sharded checkpoints"});
  for (const char* folder : {"shards", "tensor_parallel_shards"}) {
    ConsolidateRequest request = optimum.request();
    request.source.path = optimum.temp / "out" / folder;
    CHECK_NOTHROW(plan_consolidate(request));
  }
}

TEST_CASE("Two files of one rank, numbered with other widths, are refused") {
  const Optimum optimum;
  fs::copy_file(optimum.rank(1, 1), optimum.shards / "model/dp_rank_0_tp_rank_1_pp_rank_1.pt");
  check_error(optimum.planning_error(), {.says = "duplicates tp rank 1, pp rank 1"});
}

TEST_CASE("A stage whose metadata is missing is named, and so is one with two kinds of metadata") {
  const Optimum missing;
  fs::remove(missing.shards / "mp_metadata_pp_rank_0.json");
  CHECK_THAT(missing.planning_error().what(), Says("mp_metadata_pp_rank_0.json is missing"));

  const Optimum both;
  write_file(both.shards / "mp_metadata_pp_rank_1.pt", "old");
  check_error(both.planning_error(), {.says = "two metadata files of pipeline rank 1"});
}

TEST_CASE("A tensor file of xser that is missing or cut off is named") {
  const Optimum optimum(Format::kXser);
  const fs::path tensor = optimum.rank(1, 0).string() + ".tensors/tensor_2.pt";
  REQUIRE(fs::exists(tensor));
  fs::resize_file(tensor, fs::file_size(tensor) - 1);
  CHECK(optimum.planning_error().path() == tensor.string());
  fs::remove(tensor);
  check_error(optimum.planning_error(), {.path = tensor, .says = "its file is missing"});
}

}  // namespace
}  // namespace reshard::test
