#include "reshard/engine/check/stats.h"

#include "reshard/layouts/core/checkpoint.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

TEST_CASE("Statistics cover every value of tensors that take several blocks, a scalar and an empty one") {
  const TempDir temp;
  std::vector<float> big(1000ull * 1200);  // 4.8 MB: five blocks
  for (std::size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i % 1000) - 250.0f;
  write_safetensors(
      temp / "m.safetensors",
      {{"big", floats({1200, 1000}, big)}, {"empty", {DType::kF32, {0, 3}, ""}}, {"one", {DType::kI8, {}, "\x85"}}});
  const auto inspection = read_checkpoint(temp / "m.safetensors", {ConfigUse::kLenient});
  const reshard::SourceMap& map = inspection.map;
  const std::vector<std::uint32_t> wanted{*map.find_logical("big"), *map.find_logical("one"),
                                          *map.find_logical("empty")};
  const auto values = compute_stats(map, wanted, {.threads = GENERATE(1u, 3u)});
  REQUIRE(values.size() == 3);
  CHECK(values[0].count == big.size());
  CHECK(values[0].min == -250.0);
  CHECK(values[0].max == 749.0);
  CHECK(values[0].mean() == 249.5);
  CHECK(values[1].count == 1);
  CHECK(values[1].min == -123.0);
  CHECK(values[2].count == 0);
}

}  // namespace
}  // namespace reshard::test
