// A checkpoint that NxD saved without its weights, as the optimizer's files have them.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The case whose weights are in the optimizer's files, in a directory that may be spoiled.
struct WithoutWeights {
  TempDir temp;
  fs::path golden_case = testdata("golden/zero1/nxd-llama-dp3-xser-weights-in-master");
  fs::path step = temp / "run/step_3";
  fs::path rank = step / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  fs::path tensors = rank.string() + ".tensors";

  WithoutWeights() {
    fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
    fs::copy(golden_case / "original/config.json", step / "config.json");
  }
  Error error() const {
    Error result = error_of([&] { plan_consolidate(consolidate_request(step, temp / "out")); });
    CHECK(error_of([&] { read_checkpoint(step, {ConfigUse::kLenient}); }).kind() == result.kind());
    return result;
  }
  /// The weights are the master weights in the model's dtype, which are those that the run had.
  void check_reads() const {
    const auto job = plan_consolidate(consolidate_request(step, temp / "out"));
    CHECK_THAT(joined_notes(*job), Says("only as the optimizer's fp32 master weights"));
    CHECK_THAT(joined_notes(*job), Says("21 tensors are cast to BF16, the model's dtype"));
    execute(*job, unsynced());
    CHECK(describe_tensors(read_whole(temp / "out")) == golden_of(golden_case).at("original"));
    fs::remove_all(temp / "out");
  }
};

TEST_CASE("Weights that a checkpoint has in its optimizer's files alone are read from there") {
  const WithoutWeights files;
  files.check_reads();  // the folder of tensors, which is empty, was lost in a copy
  CHECK(read_checkpoint(files.step, {ConfigUse::kLenient}).format == Format::kXser);
  fs::create_directories(files.tensors);
  files.check_reads();
}

TEST_CASE("Such a checkpoint is refused where nothing says the dtypes of its weights, or one of the files is damaged") {
  const WithoutWeights files;
  SECTION("no dtypes") {
    const fs::path info = files.rank.string() + ".info.pt";
    fs::remove(info);  // which older versions did not write
    check_error(files.error(),
                {.path = info, .tensor = "model.embed_tokens.weight", .says = "does not record the dtype and shape"});
  }
  SECTION("a damaged file") {
    const fs::path damaged = files.step / "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt";
    write_file(damaged, "damaged");  // one that is whole is enough to know where the weights are
    check_error(files.error(), {.path = damaged});
  }
}

TEST_CASE("Where the optimizer has no weights, or some tensors are there, files are missing as they were") {
  const WithoutWeights files;
  fs::create_directories(files.tensors);
  const auto check_missing = [&] {
    const Error error = files.error();
    check_error(error, {.path = files.tensors / "tensor_0.pt", .says = "its file is missing"});
    return error.hint();
  };
  write_file(files.tensors / "tensor_1.pt", "");
  CHECK_THAT(check_missing(), !Says("avoid_saving"));
  fs::remove(files.tensors / "tensor_1.pt");
  // The hint says that the weights were in the optimizer's files.
  const std::string says = "master weights (avoid_saving_lower_precision_weights), they are in " +
                           (files.step / "optim").string() +
                           ", which is missing or contains no optimizer: copy it here";
  fs::rename(files.step / "optim", files.temp / "optim");
  CHECK_THAT(check_missing(), Says(says));
  fs::create_directories(files.step / "optim");
  CHECK_THAT(check_missing(), Says(says));
  for (const char* damaged : {"", "no pickle"}) {
    write_file(files.step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", damaged);
    check_missing();
  }
  fs::copy(files.rank, files.step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt",  // without sharded_master_weights
           fs::copy_options::overwrite_existing);
  check_missing();
  fs::remove_all(files.step / "optim");
  fs::remove_all(files.tensors);
  CHECK_THAT(files.error().hint(), Says(says));
  CHECK_THAT(files.error().hint(),
             Says("otherwise the folder dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors belongs next to"));
}

TEST_CASE("Ranks that hold padding alone are no obstacle where weights are in the optimizer's files alone") {
  Random random(3);
  const TinyModel model{.heads = 2, .kv_heads = 1, .head_dim = 8};
  TrainingRun run;
  do run = random_training(random, model);  // without a cast, of which not every NaN comes back
  while (run.weights.begin()->second.dtype != run.state_dtype);
  const TempDir temp;
  write_dcp(temp / "dcp", run, random, false);
  write_file(temp / "dcp/config.json", model.config().dump());
  convert(temp / "dcp", temp / "nxd",
          {.layout = "nxd", .format = Format::kXser, .tp = 4, .options = {"pad-attn-heads", "dp=2"}});
  for (const auto& entry : fs::directory_iterator(temp / "nxd/model"))
    if (entry.path().extension() == ".tensors") fs::remove_all(entry.path());
  CHECK((consolidated(temp / "nxd", temp / "out") == run.weights));
}

}  // namespace
}  // namespace reshard::test
