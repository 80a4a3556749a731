#include "reshard/formats/pickle/saved_value.h"

#include "reshard/base/crc32.h"
#include "reshard/formats/torch/torch_plan.h"
#include "reshard/formats/torch/xser.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/random.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A value with two tensors and all else that a dict may hold.
SavedValue some_value() {
  PlainValue::List groups{{PlainValue::Dict{{"lr", {0.5}}, {"betas", {PlainValue::List{{0.9}, {0.95}}}}}}};
  SavedValue::Dict states;
  states.push_back({std::int64_t{0},
                    {SavedValue::Dict{{"step", {PlainValue{std::int64_t{3}}}}, {"exp_avg", {SavedValue::Tensor{0}}}}}});
  SavedValue::Dict all;
  all.push_back({"state", {SavedValue::Dict{}}});
  all.push_back({"param_groups", {PlainValue{std::move(groups)}}});
  all.push_back({"base_state", {std::move(states)}});
  all.push_back({"master", {SavedValue::Dict{{std::int64_t{300}, {SavedValue::Tensor{1}}}}}});
  return {std::move(all)};
}

const nlohmann::ordered_json kStructure = nlohmann::ordered_json::parse(R"({
  "state": {}, "param_groups": [{"lr": 0.5, "betas": [0.9, 0.95]}],
  "base_state": {"int 0": {"step": 3, "exp_avg": {"tensor": "float32", "shape": [2, 3]}}},
  "master": {"int 300": {"tensor": "bfloat16", "shape": []}}})");

TEST_CASE("Dicts in dicts with tensors among plain values are read back as they were planned") {
  Random random(1);
  const TensorData first = random_tensor(random, DType::kF32, {2, 3});
  const TensorData second = random_tensor(random, DType::kBF16, {});
  const std::uint32_t crcs[] = {crc32(std::as_bytes(std::span(first.bytes))),
                                crc32(std::as_bytes(std::span(second.bytes)))};
  const TempDir temp;
  const ContainerPlan plan =
      plan_torch_value("states", some_value(), {{"a", first.dtype, first.shape}, {"b", second.dtype, {}}}, crcs);
  std::string file(plan.size_bytes, '\0');
  for (const FilePart& part : plan.parts) file.replace(part.offset_bytes, part.bytes.size(), part.bytes);
  file.replace(plan.tensors[0].offset_bytes, first.bytes.size(), first.bytes);
  file.replace(plan.tensors[1].offset_bytes, second.bytes.size(), second.bytes);
  write_file(temp / "states.pt", file);
  const SavedTree tree = read_saved_tree(temp / "states.pt");
  CHECK(tree.structure == kStructure);
  CHECK(tree.tensors == TensorMap{{"base_state/0/exp_avg", first}, {"master/300", second}});
}

TEST_CASE("An xser file refers to the tensors of a value by their numbers") {
  Random random(2);
  const TensorData first = random_tensor(random, DType::kF32, {2, 3});
  const TensorData second = random_tensor(random, DType::kBF16, {});
  const TempDir temp;
  const fs::path path = temp / "states.pt";
  write_file(path, xser_reference_file("states", some_value()));
  std::uint64_t number = 0;
  for (const TensorData& data : {first, second}) {
    const fs::path tensor_path = xser_tensor_path(path, number++);
    const ContainerPlan plan = plan_torch_tensor(tensor_path.stem().string(), {"t", data.dtype, data.shape});
    std::string file(plan.size_bytes, '\0');
    for (const FilePart& part : plan.parts) file.replace(part.offset_bytes, part.bytes.size(), part.bytes);
    write_file(tensor_path, file.replace(plan.tensors[0].offset_bytes, data.bytes.size(), data.bytes));
  }
  const SavedTree tree = read_saved_tree(path);
  CHECK(tree.structure == kStructure);
  CHECK(tree.tensors == TensorMap{{"base_state/0/exp_avg", first}, {"master/300", second}});
}

TEST_CASE("Tensors of a value that are not numbered in their order, or too few, are our own mistake") {
  CHECK(count_tensors(some_value()) == 2);
  CHECK(error_of([] {
          plan_torch_value("x", some_value(), {{"a", DType::kF32, {1}}});
        }).kind() == ErrorKind::kInternal);
  CHECK(error_of([] { count_tensors({SavedValue::Tensor{1}}); }).kind() == ErrorKind::kInternal);
}

TEST_CASE("Lists and dicts are filled a thousand items at a time, so that readers need no large stacks") {
  const auto filled = [](std::size_t count) {
    Pickler pickler;
    pickler.op(']');
    pickler.fill('e', [&](const auto& next) {
      for (std::size_t i = 0; i < count; ++i) {
        next();
        pickler.op('N');
      }
    });
    return pickler.finish();
  };
  const auto items = [](std::size_t count) { return "(" + std::string(count, 'N') + "e"; };
  CHECK(filled(0) == "\x80\x02](e.");
  CHECK(filled(1000) == "\x80\x02]" + items(1000) + ".");
  CHECK(filled(2001) == "\x80\x02]" + items(1000) + items(1000) + items(1) + ".");
}

}  // namespace
}  // namespace reshard::test
