#include "reshard/formats/pickle/saved_value.h"

#include "reshard/base/crc32.h"
#include "reshard/formats/torch/torch_plan.h"
#include "reshard/formats/torch/xser.h"
#include "support/catch.h"
#include "support/containers.h"
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

TEST_CASE(
    "Dicts in dicts with tensors among plain values are read back as they were planned, from one file or xser's") {
  Random random(1);
  const TensorData tensors[] = {random_tensor(random, DType::kF32, {2, 3}), random_tensor(random, DType::kBF16, {})};
  std::vector<TensorEntry> entries;
  std::vector<std::uint32_t> crcs;
  const TempDir temp;
  for (const TensorData& data : tensors) {
    crcs.push_back(crc32(std::as_bytes(std::span(data.bytes))));
    const fs::path path = xser_tensor_path(temp / "xser.pt", entries.size());
    entries.push_back({"t" + std::to_string(entries.size()), data.dtype, data.shape});
    write_file(path, assemble(plan_torch_tensor(path.stem().string(), entries.back(), crcs.back()), {data.bytes}));
  }
  write_file(temp / "xser.pt", xser_reference_file("xser", some_value()));
  write_file(temp / "one.pt",
             assemble(plan_torch_value("one", some_value(), entries, crcs), {tensors[0].bytes, tensors[1].bytes}));
  CHECK(check_crcs(temp.path()) > 6);
  for (const char* file : {"one.pt", "xser.pt"}) {
    INFO(file);
    const SavedTree tree = read_saved_tree(temp / file);
    CHECK(tree.structure == kStructure);
    CHECK(tree.tensors == TensorMap{{"base_state/0/exp_avg", tensors[0]}, {"master/300", tensors[1]}});
  }
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
