// Folders of shards as optimum-neuron leaves them: what is missing, what is too much, what was cut off.

#include "reshard/formats/torch/xser.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A llama in the layout optimum, tp 2 × pp 2.
struct Optimum : Input {
  explicit Optimum(Format format = Format::kPytorch)
      : Input({.layers = 4}, {.layout = "optimum", .format = format, .tp = 2, .pp = 2}, 21) {}

  fs::path shards = temp / "out/shards";
  Request request() const { return consolidate_request(path(), temp / "whole"); }
  std::string notes() const { return joined_notes(*plan_consolidate(request())); }
  void check_unplanned(const Refusal& refusal) const {
    check_refused([&] { plan_consolidate(request()); }, refusal);
  }
};

TEST_CASE("Ranks of optimum that are missing are listed by name, all of them") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Optimum optimum(format);
    fs::remove(optimum.rank_file(1, 0));
    optimum.check_unplanned({.path = optimum.shards,
                             .says = "1 of the 4 ranks (tp 2 × pp 2) is missing: dp_rank_00_tp_rank_01_pp_rank_00"});
    fs::remove(optimum.rank_file(0, 1));
    optimum.check_unplanned(
        {.says = {"2 of the 4 ranks", "dp_rank_00_tp_rank_01_pp_rank_00, dp_rank_00_tp_rank_00_pp_rank_01"}});
  }
}

TEST_CASE("A stage of optimum that is missing with its metadata leaves layers out") {
  const Optimum stage;
  for (const std::uint32_t tp_rank : {0, 1}) fs::remove(stage.rank_file(tp_rank, 1));
  stage.check_unplanned({.says = "2 of the 4 ranks"});
  fs::remove(stage.shards / "mp_metadata_pp_rank_1.json");
  stage.check_unplanned({});
}

TEST_CASE("Shards without the file done are read, with a warning that the save may have been cut off") {
  const Optimum optimum;
  CHECK_THAT(optimum.notes(), !Says("done"));
  fs::remove(optimum.shards / "done");
  CHECK_THAT(optimum.notes(), Says("has no file \"done\""));
  CHECK_NOTHROW(consolidate(optimum.request()));
  fs::remove(optimum.shards / "checkpoint");  // NxD's own shards have neither
  fs::remove_all(optimum / "whole");
  CHECK_THAT(optimum.notes(), !Says("done"));
}

TEST_CASE("Expert-parallel ranks are unsupported by file, whichever number they have") {
  for (const char* name :
       {"dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt", "dp_rank_00_ep_rank_03_tp_rank_01_pp_rank_01.pt"}) {
    const Optimum optimum;
    const fs::path file = optimum.shards / "model" / name;
    fs::copy_file(optimum.rank_file(0, 0), file);
    optimum.check_unplanned(
        {.kind = ErrorKind::kUnsupported, .path = file, .says = "expert-parallel", .hint = "Hugging Face model"});
  }
}

TEST_CASE("A tensor that xser says is split over experts is unsupported, by file and tensor") {
  const Optimum optimum(Format::kXser);
  const fs::path info = xser_info_path(optimum.rank_file(0, 0));
  std::string text = read_file(info);
  const std::size_t key = text.find("expert_model_parallel");
  REQUIRE(key != std::string::npos);
  text[text.find('\x89', key)] = '\x88';  // false to true
  write_file(info, text);
  const Error error = check_refused([&] { plan_consolidate(optimum.request()); }, {.kind = ErrorKind::kUnsupported,
                                                                                   .path = optimum.rank_file(0, 0),
                                                                                   .says = "expert-parallel",
                                                                                   .hint = "Hugging Face model"});
  CHECK_FALSE(error.tensor().empty());
}

TEST_CASE("Two files of one rank are refused, and a stage whose metadata is missing or of two kinds") {
  const Optimum twice, missing, both;
  fs::copy_file(twice.rank_file(1, 1), twice.shards / "model/dp_rank_0_tp_rank_1_pp_rank_1.pt");
  twice.check_unplanned({.says = "duplicates tp rank 1, pp rank 1"});
  fs::remove(missing.shards / "mp_metadata_pp_rank_0.json");
  missing.check_unplanned({.says = "mp_metadata_pp_rank_0.json is missing"});
  write_file(both.shards / "mp_metadata_pp_rank_1.pt", "old");
  both.check_unplanned({.says = "two metadata files of pipeline rank 1"});
}

TEST_CASE("A tensor file of xser that is missing or cut off is named") {
  const Optimum optimum(Format::kXser);
  const fs::path tensor = optimum.rank_file(1, 0).string() + ".tensors/tensor_2.pt";
  REQUIRE(fs::exists(tensor));
  fs::resize_file(tensor, fs::file_size(tensor) - 1);
  optimum.check_unplanned({.path = tensor});
  fs::remove(tensor);
  optimum.check_unplanned({.path = tensor, .says = "its file is missing"});
}

}  // namespace
}  // namespace reshard::test
