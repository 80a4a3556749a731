#include <algorithm>
#include <numeric>
#include <vector>

#include "reshard/tensor/copy/runs.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

using Bytes = std::vector<std::byte>;
using Offsets = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // in a, in b

Offsets offsets_of(const Runs& runs) {
  Offsets all;
  runs.for_each([&](std::uint64_t a, std::uint64_t b) { all.emplace_back(a, b); });
  return all;
}

TEST_CASE("Swapped runs take the box back to where it came from") {
  // Cut from whole tensors, so that a's and b's origins differ.
  const auto runs = make_runs(DType::kBF16, {3, 4, 5}, {3, 6, 7}, {0, 1, 2}, {4, 4, 9}, {1, 0, 3});
  REQUIRE(runs);
  const Runs back = swapped(*runs);
  CHECK(back.run_bytes == runs->run_bytes);
  Offsets expected = offsets_of(*runs);
  CHECK(expected.size() == 12);
  for (auto& [a, b] : expected) std::swap(a, b);
  CHECK(offsets_of(back) == expected);

  Bytes a(3 * 6 * 7 * 2);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::byte>(i % 251);
  Bytes b(4 * 4 * 9 * 2);
  Bytes again(a.size(), std::byte{0xee});
  Bytes box_of_a = again;
  for (const auto& [at, unused] : offsets_of(*runs)) std::copy_n(&a[at], runs->run_bytes, &box_of_a[at]);
  copy_runs(*runs, a.data(), 0, b.data(), 0);
  copy_runs(back, b.data(), 0, again.data(), 0);
  CHECK(again == box_of_a);
}

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
