// The layout presharded, as NxD's shard_checkpoint writes it: testdata/golden/preshard.

#include <nlohmann/json.hpp>

#include "reshard/plan/job/convert.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ShardRequest presharded_request(const fs::path& model, const fs::path& output, std::uint32_t tp) {
  return deployed_request(layout("presharded"), model, output, tp);
}

TEST_CASE("Ranks are pre-sharded by several runs into one directory, and are the same as those of one") {
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  const TempDir temp;
  shard(presharded_request(model, temp / "one", 4));
  ShardRequest request = presharded_request(model, temp / "several", 4);
  request.target.options.set_number("end-rank", 0);
  shard(request);
  request.target.options.set_number("start-rank", 1);
  request.target.options.set_number("end-rank", 2);
  shard(request);  // config.json is there already, and the same
  request.target.options.set_number("start-rank", 3), request.target.options.set_number("end-rank", 3);
  shard(request);
  CHECK((snapshot(temp / "several") == snapshot(temp / "one")));

  fs::remove(temp / "several/weights/tp1_sharded_checkpoint.safetensors");
  ConsolidateRequest back;
  back.source.path = temp / "several";
  back.output_directory = temp / "whole";
  check_refused([&] { plan_consolidate(back); }, {.says = "tp1_sharded_checkpoint"});
}

TEST_CASE("Of a part of the ranks, the bytes that are said to be read are those of the rows that they have") {
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  std::uint64_t expected = 0;
  for (const auto& [name, tensor] : read_model(model)) {
    const bool rows =
        tensor.shape.size() == 2 && name.find("o_proj") == name.npos && name.find("down_proj") == name.npos;
    expected += tensor.bytes.size() / (rows ? 4 : 1);
  }
  const TempDir temp;
  ShardRequest request = presharded_request(model, temp / "out", 4);
  request.target.options.set_number("start-rank", 2), request.target.options.set_number("end-rank", 2);
  CHECK(plan_shard(request)->program.read_bytes == expected);
}

TEST_CASE("Heads and packed matrices do not keep a model from being pre-sharded") {
  // 4 key/value heads over 8 ranks: rows are cut, heads or not.
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  const TempDir temp;
  shard(presharded_request(model, temp / "eight", 8));
  ConsolidateRequest back;
  back.source.path = temp / "eight/weights";
  back.output_directory = temp / "whole";
  consolidate(back);
  CHECK((read_model(temp / "whole") == read_model(model)));

  ConvertRequest convert;
  convert.source.path = temp / "eight";
  convert.output_directory = temp / "ranks";
  convert.target.layout = layout("ranks");
  convert.target.tp = 2;
  execute(*plan_convert(convert), unsynced());
  shard(shard_request(model, temp / "direct", 2));
  CHECK((read_ranks(temp / "ranks") == read_ranks(temp / "direct")));
}

TEST_CASE("What the layout presharded does not have is refused") {
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  const TempDir temp;
  const auto refused = [&](const std::function<void(TargetRequest&)>& change, const char* says) {
    ShardRequest request = presharded_request(model, temp / "out", 4);
    change(request.target);
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage, .says = says});
  };
  refused([](TargetRequest& s) { s.pp = 2; }, "pipeline stages");
  refused([](TargetRequest& s) { s.format = Format::kPytorch; }, "does not support `format` pytorch");
  refused([](TargetRequest& s) { s.options.set_flag("fuse-qkv", true); }, "`fuse-qkv`");
  refused([](TargetRequest& s) { s.options.set_number("kv-size-multiplier", 2); }, "`kv-size-multiplier`");
  refused([](TargetRequest& s) { s.options.set_number("end-rank", 4); }, "the ranks are 0 to 3");
  refused([](TargetRequest& s) { s.options.set_number("start-rank", 4); }, "the ranks are 0 to 3");
  refused([](TargetRequest& s) { s.options.set_number("start-rank", 2), s.options.set_number("end-rank", 1); },
          "`start-rank` 2 is after `end-rank` 1");
  refused([](TargetRequest& s) { s.layout = layout("ranks"), s.options.set_number("end-rank", 1); },
          "layout ranks has no option `end-rank`");
}

}  // namespace
}  // namespace reshard::test
