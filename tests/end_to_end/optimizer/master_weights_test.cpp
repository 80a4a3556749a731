// A checkpoint that NxD saved without its weights, as the optimizer's files have them.

#include "reshard/layouts/ranks/master_weights.h"

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"
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
    ConsolidateRequest request;
    request.source.path = step;
    request.output_directory = temp / "out";
    const Error result = error_of([&] { plan_consolidate(request); });
    CHECK(error_of([&] { read_checkpoint(step, {ConfigUse::kLenient}); }).kind() == result.kind());
    return result;
  }
  /// The weights are the master weights in the model's dtype, which are those that the run had.
  void check_reads() const {
    ConsolidateRequest request;
    request.source.path = step;
    request.output_directory = temp / "out";
    const auto job = plan_consolidate(request);
    CHECK_THAT(join(job->notes, "\n"), Says("master weights alone"));
    CHECK_THAT(join(job->notes, "\n"), Says("21 tensors are cast to BF16, which the model was trained in"));
    execute(*job, unsynced());
    CHECK(describe_tensors(read_whole(temp / "out")) == golden_of(golden_case).at("original"));
    fs::remove_all(temp / "out");
  }
};

TEST_CASE("Weights that a checkpoint has in its optimizer's files alone are read from there") {
  const WithoutWeights files;
  files.check_reads();  // the folder of tensors, which is empty, was lost in a copy
  fs::create_directories(files.tensors);
  files.check_reads();
}

TEST_CASE("Such a checkpoint is xser, though the model's tensor files are missing") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp3-xser-weights-in-master");
  ReadContext context;
  context.config.path = golden_case / "original";
  CHECK(read_checkpoint(golden_case / "checkpoint/step_3", context).format == Format::kXser);
}

TEST_CASE("Such a checkpoint cannot be read where nothing says the dtypes of its weights") {
  const WithoutWeights files;
  const fs::path info = files.rank.string() + ".info.pt";
  fs::remove(info);  // which older versions did not write
  check_error(files.error(),
              {.path = info, .tensor = "model.embed_tokens.weight", .says = "does not say the dtype and shape"});
}

TEST_CASE("Such a checkpoint is refused where one of the optimizer's files is damaged") {
  const WithoutWeights files;
  const fs::path damaged = files.step / "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt";
  write_file(damaged, "damaged");  // one that is whole is enough to know where the weights are
  check_error(files.error(), {.path = damaged});
}

TEST_CASE("Missing tensor files are what they were where the optimizer has no weights, or some tensors are there") {
  const WithoutWeights files;
  fs::create_directories(files.tensors);
  const auto check_missing = [&] {
    check_error(files.error(), {.path = files.tensors / "tensor_0.pt", .says = "its file is missing"});
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

TEST_CASE("Where such a checkpoint has lost its optimizer, the hint says that the weights were in there") {
  const WithoutWeights files;
  const std::string says = "master weights alone (avoid_saving_lower_precision_weights), they are in " +
                           (files.step / "optim").string() + ", which is missing or holds no optimizer: copy it here";
  fs::rename(files.step / "optim", files.temp / "optim");
  CHECK_THAT(files.error().hint(), Says(says));
  CHECK_THAT(files.error().hint(), Says("else the folder dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors belongs beside"));
  fs::create_directories(files.tensors);
  CHECK_THAT(files.error().hint(), Says(says));
  fs::create_directories(files.step / "optim");
  CHECK_THAT(files.error().hint(), Says(says));
  write_file(files.tensors / "tensor_1.pt", "");
  CHECK_THAT(files.error().hint(), !Says("avoid_saving"));
}

TEST_CASE("Ranks that hold padding alone are no obstacle where weights are in the optimizer's files alone") {
  Random random(3);
  TinyModel model;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 8;
  TrainingRun run;
  do run = random_training(random, model);  // without a cast, of which not every NaN comes back
  while (run.weights.begin()->second.dtype != run.state_dtype);
  const TempDir temp;
  write_dcp(temp / "dcp", run, random, false);
  write_file(temp / "dcp/config.json", model.config().dump());
  ConvertRequest request = convert_request(temp / "dcp", temp / "nxd");
  request.target.layout = layout("nxd");
  request.target.format = Format::kXser;
  request.target.tp = 4;
  request.target.options.set_flag("pad-attn-heads", true);
  request.target.options.set_number("dp", 2);
  convert(request);
  for (const auto& entry : fs::directory_iterator(temp / "nxd/model"))
    if (entry.path().extension() == ".tensors") fs::remove_all(entry.path());
  ConsolidateRequest back;
  back.source.path = temp / "nxd";
  back.output_directory = temp / "out";
  consolidate(back);
  CHECK((read_model(temp / "out") == run.weights));
}

}  // namespace
}  // namespace reshard::test
