// A checkpoint that NxD saved without its weights, as the optimizer's files have them.

#include "reshard/layouts/master_weights.h"

#include "reshard/layouts/checkpoint.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The case whose weights are in the optimizer's files, in a directory that may be spoiled.
struct WithoutWeights {
  TempDir temp;
  fs::path step = temp / "run/step_3";
  fs::path rank = step / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  fs::path tensors = rank.string() + ".tensors";

  WithoutWeights() {
    const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp3-xser-weights-in-master");
    fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
    fs::copy(golden_case / "original/config.json", step / "config.json");
  }
  Error error() const {
    ConsolidateRequest request;
    request.source.path = step;
    request.output_directory = temp / "out";
    const Error result = error_of([&] { plan_consolidate(request); });
    CHECK(error_of([&] { read_checkpoint(step, {ConfigUse::kLenient}); }).kind() == result.kind());
    return result;
  }
  void check_says_where() const {
    const Error result = error();
    CHECK(result.kind() == ErrorKind::kUnsupported);
    CHECK(result.path() == (step / "model").string());
    for (const char* part : {"optim/", "fp32 master weights", "later version"}) CHECK_THAT(result.what(), Says(part));
    CHECK_THAT(result.hint(), Says("avoid_saving_lower_precision_weights"));
  }
};

TEST_CASE("Weights that a checkpoint has in its optimizer's files alone are said to be there") {
  const WithoutWeights files;
  files.check_says_where();  // the folder of tensors, which is empty, was lost in a copy
  fs::create_directories(files.tensors);
  files.check_says_where();
  fs::remove(files.rank.string() + ".info.pt");  // which older versions did not write
  files.check_says_where();
  fs::remove(files.tensors);
  fs::create_directories(files.step / "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt.tensors");
  files.check_says_where();
  write_file(files.step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", "damaged");  // one that is whole is enough
  files.check_says_where();
}

TEST_CASE("Such a checkpoint is refused by that name in its run's directory too, with a config.json from elsewhere") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp3-xser-weights-in-master");
  const TempDir temp;
  ConsolidateRequest request;
  request.source.path = golden_case / "checkpoint";
  request.output_directory = temp / "out";
  request.source.config = golden_case / "original";
  const Error error = error_of([&] { plan_consolidate(request); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.path() == (golden_case / "checkpoint/step_3/model").string());
  CHECK_THAT(error.what(), Says("fp32 master weights"));
}

TEST_CASE("Missing tensor files are what they were where the optimizer has no weights, or some tensors are there") {
  const WithoutWeights files;
  fs::create_directories(files.tensors);
  const auto check_missing = [&] {
    const Error error = files.error();
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == (files.tensors / "tensor_0.pt").string());
    CHECK_THAT(error.what(), Says("its file is missing"));
  };
  write_file(files.tensors / "tensor_1.pt", "");
  check_missing();
  fs::remove(files.tensors / "tensor_1.pt");
  fs::rename(files.step / "optim", files.temp / "optim");
  check_missing();
  fs::create_directories(files.step / "optim");
  check_missing();
  for (const char* damaged : {"", "no pickle"}) {
    write_file(files.step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", damaged);
    check_missing();
  }
  fs::copy(files.rank, files.step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt",  // without sharded_master_weights
           fs::copy_options::overwrite_existing);
  check_missing();
}

}  // namespace
}  // namespace reshard::test
