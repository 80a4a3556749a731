// Defaults of conversions: mesh, format and the order of ranks.

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/oracle.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Without a mesh the shards keep that of their source, in any layout and format") {
  const Input input({.heads = 8}, {.layout = "optimum", .format = Format::kXser, .tp = 4, .pp = 2}, 2);
  const auto job = plan_convert(convert_request(input.path(), input / "b", {.layout = "ranks"}));
  CHECK(job->mesh.tp == 4);
  CHECK(job->mesh.pp == 2);
  execute(*job, unsynced());
  CHECK(fs::exists(input / "b/tensor_parallel_shards/tp_rank_03_pp_rank_01/model.safetensors"));
  CHECK((read_shards(input / "b") == expected_ranks(input.model, input.tensors, {.tp = 4, .pp = 2})));
  convert(input.path(), input / "c", {.layout = "ranks", .tp = 2});  // the pipeline's is still the source's
  CHECK((read_shards(input / "c") == expected_ranks(input.model, input.tensors, {.tp = 2, .pp = 2})));
}

TEST_CASE("Without a format, optimum is written in torch's and all else in safetensors") {
  const Input input;
  convert(input / "model", input / "optimum", {.layout = "optimum", .tp = 2});
  CHECK(fs::exists(input / "optimum/shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt"));
  convert(input / "model", input / "ranks", {.layout = "ranks", .tp = 2});
  CHECK(fs::exists(input / "ranks/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors"));
  convert(input / "optimum", input / "whole");
  CHECK(fs::exists(input / "whole/model.safetensors"));
}

TEST_CASE("Rank 100 comes after rank 99, in both layouts") {
  const TinyModel model{
      .hidden = 3, .intermediate = 104, .layers = 1, .heads = 104, .kv_heads = 104, .head_dim = 2, .vocab = 104};
  for (const std::string name : {"ranks", "optimum"}) {
    DYNAMIC_SECTION(name) {
      const Input input(model, {.layout = name, .tp = 104});
      CHECK((read_shards(input.path()) == expected_ranks(model, input.tensors, {.tp = 104})));
      CHECK((converted(input.path(), input.path() / "whole") == input.tensors));
      if (name == "optimum") CHECK(fs::exists(input / "out/shards/model/dp_rank_00_tp_rank_100_pp_rank_00.pt"));
    }
  }
}

}  // namespace
}  // namespace reshard::test
