// The layout presharded, as NxD's shard_checkpoint writes it: testdata/golden/preshard.

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = testdata("golden/preshard/llama-tp4/original");

/// For some of 4 ranks.
RequestFields presharded(const std::vector<std::string>& options = {}) {
  return {.layout = "presharded", .tp = 4, .options = options};
}

TEST_CASE("Ranks are pre-sharded by several runs into one directory, and are the same as those of one") {
  const TempDir temp;
  shard(kModel, temp / "one", presharded());
  shard(kModel, temp / "several", presharded({"end-rank=0"}));
  shard(kModel, temp / "several", presharded({"start-rank=1", "end-rank=2"}));  // config.json is there, and the same
  shard(kModel, temp / "several", presharded({"start-rank=3", "end-rank=3"}));
  CHECK((snapshot(temp / "several") == snapshot(temp / "one")));

  fs::remove(temp / "several/weights/tp1_sharded_checkpoint.safetensors");
  check_refused([&] { consolidated(temp / "several", temp / "whole"); }, {.says = "tp1_sharded_checkpoint"});
}

TEST_CASE("Of a part of the ranks, the bytes that are said to be read are those of the rows that they have") {
  std::uint64_t expected = 0;
  for (const auto& [name, tensor] : read_model(kModel)) {
    const bool rows =
        tensor.shape.size() == 2 && name.find("o_proj") == name.npos && name.find("down_proj") == name.npos;
    expected += tensor.bytes.size() / (rows ? 4 : 1);
  }
  const TempDir temp;
  const auto job = plan_shard(shard_request(kModel, temp / "out", presharded({"start-rank=2", "end-rank=2"})));
  CHECK(job->program.read_bytes == expected);
}

TEST_CASE("Heads and packed matrices do not keep a model from being pre-sharded") {
  // 4 key/value heads over 8 ranks: rows are cut, heads or not.
  const TempDir temp;
  shard(kModel, temp / "eight", {.layout = "presharded", .tp = 8});
  CHECK((consolidated(temp / "eight/weights", temp / "whole") == read_model(kModel)));
  convert(temp / "eight", temp / "ranks", {.layout = "ranks", .tp = 2});
  shard(kModel, temp / "direct", {.tp = 2});
  CHECK((read_ranks(temp / "ranks") == read_ranks(temp / "direct")));
}

TEST_CASE("What the layout presharded does not have is refused") {
  const TempDir temp;
  check_refusals<RequestFields>(
      [&](const RequestFields& fields) { plan_shard(shard_request(kModel, temp / "out", fields)); },
      {.kind = ErrorKind::kUsage},
      {{"stages", {.layout = "presharded", .tp = 4, .pp = 2}, {.says = "pipeline stages"}},
       {"a format",
        {.layout = "presharded", .format = Format::kPytorch, .tp = 4},
        {.says = "does not support `format` pytorch"}},
       {"a fused projection", presharded({"fuse-qkv"}), {.says = "`fuse-qkv`"}},
       {"a multiplier", presharded({"kv-size-multiplier=2"}), {.says = "`kv-size-multiplier`"}},
       {"an end beyond the ranks", presharded({"end-rank=4"}), {.says = "the ranks are 0 to 3"}},
       {"a start beyond the ranks", presharded({"start-rank=4"}), {.says = "the ranks are 0 to 3"}},
       {"a start after the end",
        presharded({"start-rank=2", "end-rank=1"}),
        {.says = "`start-rank` 2 is after `end-rank` 1"}},
       {"some ranks of another layout",
        {.layout = "ranks", .tp = 4, .options = {"end-rank=1"}},
        {.says = "layout ranks has no option `end-rank`"}}});
}

}  // namespace
}  // namespace reshard::test
