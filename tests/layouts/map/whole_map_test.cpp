#include "reshard/layouts/map/whole_map.h"

#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/plan/job/job.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

std::vector<std::string> names_of(const reshard::TensorMap& map, std::uint32_t file) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : map.stored)
    if (tensor.file == file) names.push_back(tensor.name);
  return names;
}

TEST_CASE("Tensors are dealt into files in order, a new one where the next would not fit") {
  const std::vector<LogicalTensor> tensors{
      {"a", DType::kU8, {40}}, {"b", DType::kU8, {60}}, {"c", DType::kU8, {1}}, {"d", DType::kU8, {99}}};
  const reshard::TensorMap map = hf_target_map(tensors, 100);
  REQUIRE(map.files.size() == 2);
  CHECK(map.files[0].path == "model-00001-of-00002.safetensors");
  CHECK(names_of(map, 0) == std::vector<std::string>{"a", "b"});  // exactly full
  CHECK(names_of(map, 1) == std::vector<std::string>{"c", "d"});
  CHECK_NOTHROW(validate_tiling(map));
}

TEST_CASE("A tensor larger than a file gets one to itself, before the one that is being filled") {
  const std::vector<LogicalTensor> tensors{
      {"a", DType::kU8, {40}}, {"big", DType::kU8, {101}}, {"c", DType::kU8, {60}}, {"d", DType::kU8, {1}}};
  const reshard::TensorMap map = hf_target_map(tensors, 100);
  REQUIRE(map.files.size() == 3);
  CHECK(names_of(map, 0) == std::vector<std::string>{"big"});
  CHECK(names_of(map, 1) == std::vector<std::string>{"a", "c"});
  CHECK(names_of(map, 2) == std::vector<std::string>{"d"});
}

TEST_CASE("One file needs no number, and the index counts tensors' bytes alone") {
  const reshard::TensorMap map =
      hf_target_map(std::vector<LogicalTensor>{{"a", DType::kF32, {4}}, {"b", DType::kF4, {6}}}, 1000);
  REQUIRE(map.files.size() == 1);
  CHECK(map.files[0].path == "model.safetensors");
  const HfIndex index = index_of(map);
  CHECK(index.total_size_bytes == 19);
  CHECK(index.weight_map.size() == 2);
  CHECK(map.files[0].size_bytes == target_parts(map, map.files[0]).front().bytes.size() + 19);
}

/// The Error of planning a shard of `model` after `change` was done to its tensors.
template <typename Change>
Error planning_error(const TempDir& temp, const TinyModel& model, Change&& change) {
  Random random(1);
  TensorMap tensors = random_tensors(model, random);
  change(tensors);
  write_model(temp / "model", model, tensors);
  const auto before = snapshot(temp.path());
  const Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); });
  CHECK((snapshot(temp.path()) == before));
  return error;
}

TEST_CASE("A tensor that config.json does not explain is named") {
  const TempDir temp;
  check_error(planning_error(temp, {},
                             [](TensorMap& tensors) {
                               tensors["model.layers.2.mlp.up_proj.weight"] =
                                   tensors["model.layers.1.mlp.up_proj.weight"];
                             }),
              {.path = temp / "model",
               .tensor = "model.layers.2.mlp.up_proj.weight",
               .says = "model.layers.2.mlp.up_proj.weight: is not explained by config.json"});
}

TEST_CASE("A tensor that is missing is named") {
  const TempDir temp;
  const Error error = planning_error(temp, {}, [](TensorMap& tensors) {
    tensors.erase("model.layers.1.input_layernorm.weight");
    tensors.erase("model.norm.weight");
  });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == (temp / "model").string());
  CHECK(error.tensor().empty());  // the message has all of them
  CHECK_THAT(error.what(),
             Says("2 tensors that config.json asks for are missing: model.layers.1.input_layernorm.weight, "
                  "model.norm.weight"));
}

TEST_CASE("A tensor of another shape is shown with both shapes") {
  const TempDir temp;
  check_error(planning_error(temp, {},
                             [](TensorMap& tensors) {
                               tensors["model.norm.weight"].shape = {8};
                               tensors["model.norm.weight"].bytes.resize(16);
                             }),
              {.tensor = "model.norm.weight", .says = {"[8]", "[16]", "config.json"}});
}

TEST_CASE("A tensor that stands in two files is refused, naming both") {
  const auto file = [](const std::string& path, std::vector<std::string> names) {
    Container container{path, 1, {}, {}, {}, {{path, 1}}};
    for (std::string& name : names) container.tensors.push_back({std::move(name), DType::kU8, {1}, 0, 1});
    return container;
  };
  check_refused(
      [&] {
        whole_map({file("a.safetensors", {"w", "x"}), file("b.safetensors", {"w"})});
      },
      {.path = "b.safetensors", .tensor = "w", .says = "a.safetensors"});
}

}  // namespace
}  // namespace reshard::test
