#include "reshard/tensor/copy/copy.h"

#include <random>
#include <set>
#include <vector>

#include "reshard/tensor/copy/copy_kernels.h"
#include "tensor/simd_support.h"

namespace reshard::test {
namespace {

constexpr std::byte kGuard{0xEE};

/// A grid in buffers that end with it, so that sanitizers see any byte that is touched beyond.
struct Grid {
  CopyLoop outer;
  CopyLoop inner;
  std::uint64_t cell_bytes;
  std::uint64_t from_begin;  // bytes before the first cell
  std::uint64_t to_begin;

  std::uint64_t from_bytes() const { return end(from_begin, outer.from_stride, inner.from_stride); }
  std::uint64_t to_bytes() const { return end(to_begin, outer.to_stride, inner.to_stride); }

 private:
  std::uint64_t end(std::uint64_t begin, std::uint64_t outer_stride, std::uint64_t inner_stride) const {
    if (outer.count == 0 || inner.count == 0) return begin;
    return begin + (outer.count - 1) * outer_stride + (inner.count - 1) * inner_stride + cell_bytes;
  }
};

Bytes random_bytes(std::uint64_t size) {
  std::mt19937_64 random(size);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x7F);  // never the guard
  return bytes;
}

/// The oracle: byte by byte, between guards.
Bytes copied_slowly(const Grid& g, const Bytes& from) {
  Bytes to(g.to_bytes(), kGuard);
  for (std::uint64_t i = 0; i < g.outer.count; ++i)
    for (std::uint64_t j = 0; j < g.inner.count; ++j)
      for (std::uint64_t k = 0; k < g.cell_bytes; ++k)
        to[g.to_begin + i * g.outer.to_stride + j * g.inner.to_stride + k] =
            from[g.from_begin + i * g.outer.from_stride + j * g.inner.from_stride + k];
  return to;
}

std::string describe(const Grid& g) {
  return std::to_string(g.outer.count) + " x " + std::to_string(g.inner.count) + " cells of " +
         std::to_string(g.cell_bytes) + " bytes from " + std::to_string(g.from_begin) + " to " +
         std::to_string(g.to_begin);
}

/// Runs `copy` with each instruction set and holds what it writes against the oracle.
template <typename Copy>
void check(const std::vector<Grid>& grids, Copy&& copy) {
  REQUIRE(!grids.empty());
  for (const Grid& g : grids) {
    const Bytes from = random_bytes(g.from_bytes());
    const Bytes expected = copied_slowly(g, from);
    with_each_simd_target([&] {
      Bytes to(expected.size(), kGuard);
      copy(g, from.data() + g.from_begin, to.data() + g.to_begin);
      if (to != expected) FAIL(describe(g));
    });
  }
}

void check_rows(std::uint64_t row_bytes, std::uint64_t from_gap, std::uint64_t to_gap) {
  std::vector<Grid> grids;
  for (const std::uint64_t count : {0, 1, 2, 3, 17})
    for (const std::uint64_t place : {0, 1, 4, 7, 31})
      grids.push_back({{1, 0, 0}, {count, row_bytes + from_gap, row_bytes + to_gap}, row_bytes, place, 33 - place});
  check(grids, [](const Grid& g, const std::byte* from, std::byte* to) { copy_rows(g.inner, g.cell_bytes, from, to); });
}

TEST_CASE("Rows of every size arrive whole, and nothing beside them is written") {
  for (std::uint64_t row_bytes = 0; row_bytes <= 80; ++row_bytes) check_rows(row_bytes, row_bytes % 7, row_bytes % 5);
  for (const std::uint64_t row_bytes : {95, 96, 97, 127, 128, 129, 160, 191, 223, 254, 255, 256, 257, 300, 1000, 5000})
    for (const std::uint64_t gap : {0, 1, 64}) check_rows(row_bytes, gap, 64 - gap);
}

TEST_CASE("A row that is read again and again is written as often") {
  check(
      {{{1, 0, 0}, {9, 0, 3}, 3, 2, 1}, {{5, 0, 40}, {9, 4, 4}, 4, 2, 1}, {{20, 1, 40}, {9, 0, 1}, 1, 2, 1}},
      [](const Grid& g, const std::byte* from, std::byte* to) { copy_grid(g.outer, g.inner, g.cell_bytes, from, to); });
}

/// Columns that lie beside each other in the source, rows that do in the target, with room after each.
Grid transposed(std::uint64_t rows, std::uint64_t columns, std::uint64_t cell_bytes, std::uint64_t place) {
  return {{rows, columns * cell_bytes + place, cell_bytes},
          {columns, cell_bytes, rows * cell_bytes + 2 * place},
          cell_bytes,
          place,
          15 - place};
}

TEST_CASE("Matrices of every size are transposed, whichever loop is the outer one") {
  for (const std::uint64_t cell_bytes : {1, 2, 3, 4, 8, 12, 16}) {
    std::vector<Grid> grids;
    for (const std::uint64_t rows : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 71})
      for (const std::uint64_t columns : {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 70}) {
        grids.push_back(transposed(rows, columns, cell_bytes, (rows + columns) % 4));
        grids.push_back(grids.back());
        std::swap(grids.back().outer, grids.back().inner);
      }
    check(grids, [](const Grid& g, const std::byte* from, std::byte* to) {
      copy_grid(g.outer, g.inner, g.cell_bytes, from, to);
    });
  }
}

TEST_CASE("Grids larger than a tile are copied whole, cut and put together") {
  std::vector<Grid> grids;
  for (const std::uint64_t cell_bytes : {1, 5, 32, 300, 5000})
    for (const std::uint64_t parts : {1, 3, 64}) {
      const std::uint64_t rows = 40000 / (parts * cell_bytes) + 3;
      const CopyLoop part{parts, cell_bytes, rows * cell_bytes + 1};
      const CopyLoop row{rows, parts * cell_bytes, cell_bytes};
      grids.push_back({part, row, cell_bytes, 0, 1});
      grids.push_back({row, part, cell_bytes, 1, 0});
      const auto back = [](const CopyLoop& loop) { return CopyLoop{loop.count, loop.to_stride, loop.from_stride}; };
      grids.push_back({back(part), back(row), cell_bytes, 0, 1});
    }
  check(grids, [](const Grid& g, const std::byte* from, std::byte* to) {
    copy_grid(g.outer, g.inner, g.cell_bytes, from, to);
  });
}

TEST_CASE("Each instruction set has copies of its own, plain C++ is memcpy a row") {
  std::set<CopyRowsKernel> rows;
  std::set<TransposeKernel> transposes;
  with_each_simd_target([&] {
    rows.insert(copy_rows_kernel(8));
    for (const std::uint64_t bytes : {1, 2, 4, 8}) transposes.insert(simd_transpose_kernel(bytes));
    CHECK((copy_rows_kernel(8) == &copy_rows_scalar) == simd_is_scalar());
    CHECK((simd_transpose_kernel(4) == nullptr) == simd_is_scalar());
    CHECK(copy_rows_kernel(kShortRowBytes + 1) == &copy_rows_scalar);
    CHECK(simd_transpose_kernel(16) == nullptr);
  });
  CHECK(rows.size() == simd_targets().size());
  CHECK(transposes.size() == 4 * (simd_targets().size() - 1) + 1);
}

}  // namespace
}  // namespace reshard::test
