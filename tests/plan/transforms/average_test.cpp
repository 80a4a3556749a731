#include "reshard/plan/transforms/average.h"

#include "reshard/plan/job/program.h"
#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

/// Tensors of four F32 in one file; those of one letter in the same bytes.
SourceMap map_of(const std::vector<std::pair<std::string, char>>& tensors) {
  SourceMap map;
  map.files.push_back({{"model.safetensors", 1000}});
  for (const auto& [name, place] : tensors) {
    const auto stored = static_cast<std::uint64_t>(place - 'a');
    map.add_whole(map.add_stored(StoredTensor{name, DType::kF32, {4}, 0, 16 * stored}), name);
  }
  return map;
}

TEST_CASE("A mean comes last and reads each term once, and what files contain is counted as before") {
  const SourceMap before = map_of({{"x", 'a'}, {"other", 'b'}, {"y", 'c'}});
  const SourceMap map = average(before, {{"mean", {"x", "y"}}});
  const auto mean = map.logical.back().computed;
  REQUIRE(mean != nullptr);
  CHECK(map.logical.back().name == "mean");
  CHECK((mean->inputs == std::vector<std::string>{"x", "y"}));
  CHECK(make_reading_program(map).transfers.back().source->inputs.size() == 2);
  CHECK(map.tensor_count() == 3);
  CHECK(map.state_dict().size() == 3);
}

TEST_CASE("What terms have in common is no mean") {
  const SourceMap map = average(map_of({{"x", 'a'}, {"y", 'b'}}), {{"one", {"x", "y"}, LoraFuse::kSame}});
  CHECK(map.logical.back().computed->recipe->key() == "same");
}

TEST_CASE("Terms that are the same bytes of a file count once, and none of them needs a place in the target") {
  const SourceMap map = average(map_of({{"x", 'a'}, {"y", 'a'}, {"z", 'b'}}), {{"mean", {"x", "y"}}});
  CHECK(map.tensor_count() == 3);
  TargetMap target;
  target.files.push_back({{"model.safetensors", 1000}, 0, 2});
  for (const std::string name : {"z", "mean"})
    target.add_whole(target.add_stored(StoredTensor{name, DType::kF32, {4}, 0}), name);
  const Program program = make_program(map, target);
  CHECK(program.transfers.size() == 2);
  CHECK(program.read_bytes == 32);
  CHECK(program.dropped_bytes == 0);
  CHECK(error_of([] { average(map_of({{"x", 'a'}}), {{"mean", {"y"}}}); }).kind() == ErrorKind::kInternal);
}

}  // namespace
}  // namespace reshard::test
