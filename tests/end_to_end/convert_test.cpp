// Conversions: defaults of mesh and format, the order of ranks, and any number of threads.

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
  const auto job =
      plan_convert(convert_request(input.path(), input / "b", {.layout = "ranks", .format = Format::kSafetensors}));
  CHECK(job->mesh.tp == 4);
  CHECK(job->mesh.pp == 2);
  execute(*job, unsynced());
  CHECK(fs::exists(input / "b/tensor_parallel_shards/tp_rank_03_pp_rank_01/model.safetensors"));
  CHECK((read_shards(input / "b") == expected_ranks(input.model, input.tensors, {.tp = 4, .pp = 2})));
  convert(input.path(), input / "c",
          {.layout = "ranks", .format = Format::kSafetensors, .tp = 2});  // the pipeline's is still the source's
  CHECK((read_shards(input / "c") == expected_ranks(input.model, input.tensors, {.tp = 2, .pp = 2})));
}

TEST_CASE("Without a format, ranks are written as trainers load them, and whole tensors in safetensors") {
  const Input input;
  convert(input / "model", input / "optimum", {.layout = "optimum", .tp = 2});
  CHECK(fs::exists(input / "optimum/shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt"));
  convert(input / "model", input / "ranks", {.layout = "ranks", .tp = 2});
  CHECK(fs::exists(input / "ranks/tensor_parallel_shards/tp_rank_01_pp_rank_00/checkpoint.pt"));
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

TEST_CASE("Threads and memory do not change a byte of any output") {
  const Input input({}, [](const fs::path& directory) {
    const TinyModel model{.hidden = 384, .layers = 3, .vocab = 8192, .tied = true};  // tensors of several blocks
    Random random(5);
    TensorMap tensors = random_tensors(model, random);
    write_model(directory, model, tensors, 2);
    return tensors;
  });
  std::map<std::string, std::string> ranks, whole;
  for (const unsigned threads : {1u, 2u, 3u, 7u}) {
    RunOptions options;
    options.threads = threads;
    options.max_memory_bytes = threads == 3 ? std::uint64_t{64} << 20 : kMinMemoryBytes * threads;
    for (const char* output : {"ranks", "whole"}) fs::remove_all(input / output);
    shard(shard_request(input / "model", input / "ranks", 4, 2), options);
    consolidate(consolidate_request(input / "ranks", input / "whole"), options);
    if (threads == 1) {
      ranks = snapshot(input / "ranks"), whole = snapshot(input / "whole");
      CHECK((read_model(input / "whole") == input.tensors));
    }
    CHECK((snapshot(input / "ranks") == ranks));
    CHECK((snapshot(input / "whole") == whole));
  }
}

}  // namespace
}  // namespace reshard::test
