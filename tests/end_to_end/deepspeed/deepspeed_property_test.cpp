// The layout deepspeed on random parameters, groups, stages and ranks, in files that the tests write by themselves.

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/flat_range.h"
#include "support/catch.h"
#include "support/local_files.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/zero_files.h"

namespace reshard::test {
namespace {

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

TEST_CASE("Random checkpoints of every stage of ZeRO, and universal ones of them, are read byte for byte") {
  std::size_t split = 0;
  for (const std::uint64_t seed : seeds(150)) {
    Random random(seed);
    const TempDir temp;
    const ZeroModel model = random_zero_model(random);
    const auto stage = static_cast<unsigned>(pick(random, 1, 3));
    const auto ranks = static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 4, 8, 11, 13}));  // 10 is after 9
    const bool universal = pick(random, 0, 4) == 0;
    CAPTURE(seed, stage, ranks, universal);
    if (universal)
      write_universal(temp / "in", model, stage, ranks, random);
    else
      write_zero(temp / "in", model, stage, ranks, pick(random, 1, 3), random);
    const RequestFields masters{.source_options = {"weights=master"}};
    CHECK((converted(temp / "in", temp / "out", masters) == master_tensors(model)));
    const Request request = convert_request(temp / "in", temp / "out", masters);
    split += read_checkpoint(local_storage(), temp / "in", {.options = request.source.options}).map.stored.size() >
             model.module.size();
    if (stage < 3) CHECK((converted(temp / "in", temp / "out") == model.module));
  }
  if (has_all_seeds()) CHECK(split > 30);
}

}  // namespace
}  // namespace reshard::test
