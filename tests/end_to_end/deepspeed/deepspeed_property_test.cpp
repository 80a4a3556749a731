// The layout deepspeed on random parameters, groups, stages and ranks, in files that the tests write by themselves.

#include "reshard/layouts/map/flat_range.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/zero_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Boxes of a range of elements are those elements, in order, and as few as can be") {
  for (const std::uint64_t seed : seeds(300)) {
    CAPTURE(seed);
    Random random(seed);
    Dims shape(pick(random, 0, 4));
    for (std::uint64_t& size : shape) size = pick(random, 1, 5);
    const std::uint64_t elems = num_elems(shape).value();
    const std::uint64_t begin = pick(random, 0, elems), count = pick(random, 0, elems - begin);
    const Dims strides = c_strides(shape);
    std::uint64_t next = begin;
    const std::vector<Box> boxes = boxes_of_range(shape, begin, count);
    for (const Box& box : boxes) {
      CHECK(contains(shape, box));
      std::uint64_t first = 0, last = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        first += box.begin[d] * strides[d];
        last += (box.begin[d] + box.size[d] - 1) * strides[d];
      }
      CHECK(first == next);
      CHECK(last + 1 == next + volume(box));  // without gaps
      next += volume(box);
    }
    CHECK(next == begin + count);
    CHECK(boxes.size() <= std::max<std::size_t>(1, 2 * shape.size()));
    if (count == elems) CHECK(boxes.size() == 1);
  }
  CHECK(boxes_of_range({3, 0}, 0, 0) == std::vector<Box>{whole({3, 0})});
}

TEST_CASE("Random checkpoints of every stage of ZeRO are read byte for byte") {
  std::size_t split = 0;
  for (const std::uint64_t seed : seeds(120)) {
    CAPTURE(seed);
    Random random(seed);
    const TempDir temp;
    const ZeroModel model = random_zero_model(random);
    const auto stage = static_cast<unsigned>(pick(random, 1, 3));
    const auto ranks = static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 4, 8, 11, 13}));
    const fs::path folder = temp / "global_step7";
    write_zero(folder, model, stage, ranks, pick(random, 1, 3), random);
    CAPTURE(stage, ranks);
    ConvertRequest request = convert_request(folder, temp / "master");
    request.source.options.set("weights", "master");
    convert(request);
    CHECK((read_model(temp / "master") == master_tensors(model)));
    split += read_checkpoint(local_storage(), folder, {.options = request.source.options}).map.stored.size() >
             model.module.size();
    if (stage == 3) continue;
    convert(convert_request(folder, temp / "model"));
    CHECK((read_model(temp / "model") == model.module));
  }
  if (has_all_seeds()) CHECK(split > 30);
}

TEST_CASE("Random universal checkpoints are read byte for byte, of every stage of ZeRO that they are made of") {
  for (const std::uint64_t seed : seeds(30)) {
    CAPTURE(seed);
    Random random(seed);
    const TempDir temp;
    const ZeroModel model = random_zero_model(random);
    const auto stage = static_cast<unsigned>(pick(random, 1, 3));
    write_universal(temp / "universal", model, stage, static_cast<std::uint32_t>(pick(random, 1, 4)), random);
    ConvertRequest request = convert_request(temp / "universal", temp / "master");
    request.source.options.set("weights", "master");
    convert(request);
    CHECK((read_model(temp / "master") == master_tensors(model)));
    if (stage == 3) continue;
    convert(convert_request(temp / "universal", temp / "model"));
    CHECK((read_model(temp / "model") == model.module));
  }
}

TEST_CASE("The ranks of a checkpoint of ZeRO go by their numbers, so that 10 is after 9") {
  Random random(4);
  const TempDir temp;
  ZeroModel model;
  model.masters["w"] = random_tensor(random, DType::kF32, {11, 8});
  model.module["w"] = random_tensor(random, DType::kBF16, {11, 8});
  model.module["steps"] = random_tensor(random, DType::kI64, {});
  model.groups = {{"w"}};
  for (const unsigned stage : {1u, 3u}) {
    const fs::path folder = temp / ("stage" + std::to_string(stage));
    write_zero(folder, model, stage, 11, 1, random);
    ConvertRequest request = convert_request(folder, temp / ("out" + std::to_string(stage)));
    request.source.options.set("weights", "master");
    convert(request);
    CHECK((read_model(request.output_directory) == master_tensors(model)));
  }
}

}  // namespace
}  // namespace reshard::test
