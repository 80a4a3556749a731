#include <algorithm>
#include <numeric>
#include <vector>

#include "reshard/tensor/copy/runs.h"
#include "support/catch.h"
#include "tensor/simd_support.h"

namespace reshard::test {
namespace {

/// Cuts a block of rows into parts of these widths, all at once, and puts them together again.
void check_cut(const Dims& widths, std::uint64_t rows, const Dims& row_counts) {
  const std::uint64_t width = std::accumulate(widths.begin(), widths.end(), std::uint64_t{0});
  Bytes block(rows * width);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 2654435761u >> 7);
  std::vector<Runs> cuts;
  std::vector<Bytes> parts;
  Bytes again(block.size());
  std::vector<RunsCopy> copies;
  for (std::size_t i = 0, column = 0; i < widths.size(); column += widths[i++]) {
    cuts.push_back(*make_runs(DType::kU8, {row_counts[i], widths[i]}, {rows, width}, {0, column},
                              {row_counts[i], widths[i]}, {0, 0}));
    parts.emplace_back(row_counts[i] * widths[i]);
  }
  for (std::size_t i = 0; i < cuts.size(); ++i) copies.push_back({&cuts[i], block.data(), 0, parts[i].data(), 0});
  copy_runs_together(copies);
  std::vector<Runs> backs;
  for (std::size_t i = 0, column = 0; i < widths.size(); column += widths[i++]) {
    for (std::uint64_t row = 0; row < row_counts[i]; ++row)
      for (std::uint64_t k = 0; k < widths[i]; ++k)
        if (parts[i][row * widths[i] + k] != block[row * width + column + k]) FAIL("part " << i << ", row " << row);
    backs.push_back(swapped(cuts[i]));
    for (std::uint64_t row = row_counts[i]; row < rows; ++row)  // what has not been cut off
      std::copy_n(&block[row * width + column], widths[i], &again[row * width + column]);
  }
  for (std::size_t i = 0; i < cuts.size(); ++i) copies[i] = {&backs[i], parts[i].data(), 0, again.data(), 0};
  copy_runs_together(copies);
  CHECK(again == block);
}

TEST_CASE("Parts of a block that are copied together are those that are copied one by one") {
  check_cut({1, 2, 3, 4, 5, 40, 300}, 500, Dims(7, 500));
  check_cut(Dims(64, 2), 999, Dims(64, 999));
  check_cut({20000, 30000}, 3, {3, 3});
  check_cut({7, 9, 11}, 100, {100, 60, 100});  // of unequal heights
  check_cut({7, 9}, 100, {1, 1});              // one run each
  copy_runs_together({});
}

}  // namespace
}  // namespace reshard::test
