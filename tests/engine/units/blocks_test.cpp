#include "reshard/engine/units/blocks.h"

#include "reshard/tensor/copy/runs.h"
#include "support/catch.h"
#include "support/models.h"

namespace reshard::test {
namespace {

/// The blocks of a grid follow each other in C order, each in one piece, whole bytes, and leave nothing out.
void check_grid(DType dtype, const Dims& shape, std::uint64_t max_bytes) {
  INFO(name(dtype) << " " << to_string(shape) << " in blocks of " << max_bytes);
  const BlockGrid grid(dtype, shape, max_bytes);
  std::uint64_t next_bits = 0;
  for (std::uint64_t i = 0; i < grid.count(); ++i) {
    const Box box = grid.block(i);
    REQUIRE(contains(shape, box));
    const auto runs = make_runs(dtype, box.size, shape, box.begin, box.size, Dims(shape.size(), 0));
    REQUIRE(runs);
    CHECK(runs->loops.empty());
    CHECK(runs->a_begin_bytes * 8 == next_bits);
    CHECK(runs->run_bytes > 0);
    next_bits += volume(box) * bits(dtype);
  }
  CHECK(next_bits == num_elems(shape).value() * bits(dtype));
}

TEST_CASE("Blocks tile every shape exactly, in order, in one piece and in whole bytes") {
  std::size_t checked = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Dims shape(random() % 5);
    for (std::uint64_t& size : shape) size = random() % 16 == 0 ? 0 : pick(random, 1, 12);
    const DType dtype = kDTypes[random() % std::size(kDTypes)].dtype;
    if (!num_bytes(dtype, shape)) continue;
    check_grid(dtype, shape, pick(random, 1, 300));
    ++checked;
  }
  CHECK(checked > 300);
}

TEST_CASE("A block keeps to its size wherever one row of the innermost dim fits it") {
  const BlockGrid rows(DType::kF32, {100, 10}, 130);
  CHECK(rows.count() == 34);
  CHECK(rows.block(0) == Box{{0, 0}, {3, 10}});
  CHECK(rows.block(33) == Box{{99, 0}, {1, 10}});
  const BlockGrid parts(DType::kF32, {3, 100}, 130);
  CHECK(parts.count() == 12);
  CHECK(parts.block(1) == Box{{0, 32}, {1, 32}});
  CHECK(parts.block(3) == Box{{0, 96}, {1, 4}});
  CHECK(parts.block(11) == Box{{2, 96}, {1, 4}});
}

TEST_CASE("Blocks of a sub-byte dtype hold eight elements or a multiple") {
  const BlockGrid grid(DType::kF6E2M3, {2, 20}, 1);
  CHECK(grid.count() == 6);
  CHECK(grid.block(0) == Box{{0, 0}, {1, 8}});
  CHECK(grid.block(5) == Box{{1, 16}, {1, 4}});
  check_grid(DType::kF4, {16, 3}, 1);
  check_grid(DType::kF4, {2, 3, 4}, 1);
}

TEST_CASE("A scalar is one block, a tensor without elements has none") {
  CHECK(BlockGrid(DType::kF64, {}, 1).count() == 1);
  CHECK(BlockGrid(DType::kF64, {}, 1).block(0) == Box{});
  CHECK(BlockGrid(DType::kF64, {4, 0, 2}, 100).count() == 0);
  CHECK(BlockGrid(DType::kF64, {0}, 100).count() == 0);
}

}  // namespace
}  // namespace reshard::test
