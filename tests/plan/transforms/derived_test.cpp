#include "reshard/plan/transforms/derived.h"

#include <algorithm>

#include "reshard/plan/job/program.h"
#include "reshard/tensor/recipes/mean.h"
#include "reshard/tensor/recipes/same.h"
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

LogicalTensor derived(const std::string& name, std::shared_ptr<const Recipe> recipe, std::vector<std::string> inputs) {
  return {name, DType::kF64, {4}, std::make_shared<const Computed>(Computed{std::move(recipe), std::move(inputs)})};
}

Draft installed(SourceMap map, std::vector<LogicalTensor> tensors) {
  Draft draft;
  draft.source.map = std::move(map);
  install_derived(draft, std::move(tensors), {});
  return draft;
}

TEST_CASE("A mean comes last and reads each term once, and what files contain is counted as before") {
  const SourceMap before = map_of({{"x", 'a'}, {"other", 'b'}, {"y", 'c'}});
  const Draft draft = installed(before, {derived("mean", mean_recipe(), {"x", "y"})});
  const SourceMap& map = draft.source.map;
  const auto mean = map.logical.back().computed;
  REQUIRE(mean != nullptr);
  CHECK(map.logical.back().name == "mean");
  CHECK((mean->inputs == std::vector<std::string>{"x", "y"}));
  CHECK(map.logical.back().dtype == DType::kF32);
  CHECK(draft.transforms == std::vector<Applied>{{Applied::Transform::kAverage, 1}});
  CHECK(make_reading_program(map).transfers.back().source->inputs.size() == 2);
  CHECK(map.tensor_count() == 3);
  CHECK(map.state_dict().size() == 3);
}

TEST_CASE("What terms have in common is no mean") {
  CHECK(installed(map_of({{"x", 'a'}, {"y", 'b'}}), {derived("one", same_recipe(), {"x", "y"})}).transforms.empty());
}

TEST_CASE("Master weights that the source does not have are made from its weights, which a note says") {
  SourceMap map = map_of({{"x", 'a'}});
  map.logical[0].dtype = map.stored[0].dtype = DType::kBF16;
  LogicalTensor master = derived("master.x", same_recipe(), {"x"});
  master.role = TensorRole::kState;
  const Draft draft = installed(std::move(map), {master});
  CHECK(draft.source.map.logical.back().dtype == DType::kBF16);
  REQUIRE(draft.source.notes.size() == 1);
  CHECK_THAT(draft.source.notes[0], Says("no master weights of 1 parameter"));
}

TEST_CASE("Terms that are the same bytes of a file count once, and none of them needs a place in the target") {
  const Draft draft =
      installed(map_of({{"x", 'a'}, {"y", 'a'}, {"z", 'b'}}), {derived("mean", mean_recipe(), {"x", "y"})});
  const SourceMap& map = draft.source.map;
  CHECK(map.tensor_count() == 3);
  TargetMap target;
  target.files.push_back({{"model.safetensors", 1000}, 0, 2});
  for (const std::string name : {"z", "mean"})
    target.add_whole(target.add_stored(StoredTensor{name, DType::kF32, {4}, 0}), name);
  const Program program = make_program(map, target);
  CHECK(program.transfers.size() == 2);
  CHECK(program.read_bytes == 32);
  CHECK(program.dropped_bytes == 0);
  CHECK(error_of([] {
          installed(map_of({{"x", 'a'}}), {derived("mean", mean_recipe(), {"y"})});
        }).kind() == ErrorKind::kInternal);
}

}  // namespace
}  // namespace reshard::test
