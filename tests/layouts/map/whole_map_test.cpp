#include "reshard/layouts/map/whole_map.h"

#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/plan/plan.h"
#include "support/models.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

TEST_CASE(
    "Tensors are dealt into files in order, a new one where the next would not fit, and large ones by themselves") {
  using Files = std::vector<std::vector<std::string>>;
  const auto files_of = [](const std::vector<LogicalTensor>& tensors) {
    const reshard::TargetMap map = hf_target_map(tensors, 100);
    CHECK_NOTHROW(validate_tiling(map));
    CHECK(map.files[0].path == hf_file_name(Format::kSafetensors, 1, map.files.size()));
    Files names(map.files.size());
    for (const StoredTensor& tensor : map.stored) names[tensor.file].push_back(tensor.name);
    return names;
  };
  const auto of_size = [](const char* name, std::uint64_t bytes) { return LogicalTensor{name, DType::kU8, {bytes}}; };
  CHECK(files_of({of_size("a", 40), of_size("b", 60), of_size("c", 1), of_size("d", 99)}) ==
        Files{{"a", "b"}, {"c", "d"}});  // exactly full
  CHECK(files_of({of_size("a", 40), of_size("big", 101), of_size("c", 60), of_size("d", 1)}) ==
        Files{{"big"}, {"a", "c"}, {"d"}});
}

TEST_CASE("One file needs no number, and the index counts tensors' bytes alone") {
  const reshard::TargetMap map =
      hf_target_map(std::vector<LogicalTensor>{{"a", DType::kF32, {4}}, {"b", DType::kF4, {6}}}, 1000);
  REQUIRE(map.files.size() == 1);
  CHECK(map.files[0].path == "model.safetensors");
  const HfIndex index = index_of(map);
  CHECK(index.total_size_bytes == 19);
  CHECK(index.weight_map.size() == 2);
  CHECK(map.files[0].size_bytes == target_parts(map, map.files[0]).front().bytes.size() + 19);
}

TEST_CASE("Tensors that config.json does not explain, of another shape or missing are named") {
  const std::string norm = "model.norm.weight", extra = "model.layers.2.mlp.up_proj.weight";
  const std::pair<std::function<void(TensorMap&)>, Refusal> rows[] = {
      {[&](TensorMap& tensors) { tensors[extra] = tensors["model.layers.1.mlp.up_proj.weight"]; },
       {.path = "model", .tensor = extra, .says = extra + ": is not explained by config.json"}},
      {[&](TensorMap& tensors) {
         tensors[norm] = {DType::kBF16, {8}, std::string(16, 'x')};
       },
       {.tensor = norm, .says = {"[8]", "[16]", "config.json"}}},
      {[&](TensorMap& tensors) {
         for (const std::string& name : {norm, std::string("model.layers.1.input_layernorm.weight")})
           tensors.erase(name);
       },
       {.path = "model",
        .tensor = "",  // the message has all of them
        .says = "2 tensors that config.json asks for are missing: model.layers.1.input_layernorm.weight, " + norm}}};
  for (const auto& [change, refusal] : rows) {
    MemoryFiles files;
    Random random(1);
    TensorMap tensors = random_tensors({}, random);
    change(tensors);
    write_model(files, "model", {}, tensors);
    check_refused([&] { plan_shard(files, shard_request("model", "out", 2)); }, refusal);
  }
}

TEST_CASE("A tensor that stands in two files is refused, naming both") {
  std::vector<Container> files;
  for (const char* path : {"a.safetensors", "b.safetensors"}) {
    files.push_back({path, 1, {}, {}, {}, {{path, 1}}});
    files.back().tensors.push_back({"w", DType::kU8, {1}, 0, 1});
  }
  files[0].tensors.push_back({"x", DType::kU8, {1}, 0, 1});
  check_refused([&] { whole_map(files); }, {.path = "b.safetensors", .tensor = "w", .says = "a.safetensors"});
}

}  // namespace
}  // namespace reshard::test
