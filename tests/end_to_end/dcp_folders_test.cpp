// accelerate's folders of a training run, with the model in one and its optimizer in another.

#include <filesystem>

#include "reshard/layouts/checkpoint.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/local_files.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Two names of one folder, as accelerate wants them, are one checkpoint") {
  const fs::path run = testdata("golden/dcp/qwen3-fsdp1-accelerate/sharded");
  const TempDir temp;
  const fs::path model = temp / "one/pytorch_model_fsdp_0", optimizer = temp / "one/optimizer_0";
  convert(run_request(run, model, 3, "model"));
  SECTION("the optimizer's is a link") { fs::create_directory_symlink("pytorch_model_fsdp_0", optimizer); }
  SECTION("the model's is a link") {
    fs::rename(model, optimizer);
    fs::create_directory_symlink("optimizer_0", model);
  }
  SECTION("both are links") {
    fs::rename(model, temp / "both");
    fs::create_directory_symlink(temp / "both", model);
    fs::create_directory_symlink(temp / "both", optimizer);
  }
  const dcp::Content content = dcp::read(model);
  for (const fs::path& source : {temp / "one", model}) {
    const TempDir again;
    convert(run_request(source, again / "out", 2, "model"));
    const dcp::Content recut = dcp::read(again / "out");
    CHECK((recut.tensors == content.tensors));
    CHECK((recut.objects == content.objects));
  }
}

TEST_CASE("The optimizer beside the model is found however the model's folder is written") {
  const fs::path model = testdata("golden/dcp/qwen3-fsdp1-accelerate/sharded/pytorch_model_fsdp_0");
  for (const fs::path& source : {model, model / "", model / ".", model / "../pytorch_model_fsdp_0"}) {
    CAPTURE(source);
    const TempDir temp;
    convert(run_request(source, temp / "out", 2, "model"));
    CHECK(dcp::read(temp / "out").tensors.size() == 100);
  }
}

}  // namespace
}  // namespace reshard::test
