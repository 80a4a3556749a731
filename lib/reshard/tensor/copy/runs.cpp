#include "reshard/tensor/copy/runs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "reshard/tensor/copy/copy_kernels.h"

namespace reshard {
namespace {

CopyLoop copy_loop(const Runs::Loop& loop) {
  return {loop.count, loop.a_stride_bytes, loop.b_stride_bytes};
}

/// Prepared copy of a RunsCopy with one run per row.
struct Part {
  explicit Part(const RunsCopy& copy)
      : rows(copy_loop(copy.runs->loops[0])),
        row_bytes(copy.runs->run_bytes),
        from(copy.a + (copy.runs->a_begin_bytes - copy.a_origin_bytes)),
        to(copy.b + (copy.runs->b_begin_bytes - copy.b_origin_bytes)),
        kernel(copy_rows_kernel(row_bytes)) {}

  void copy(std::uint64_t begin, std::uint64_t count) const {
    kernel({count, rows.from_stride, rows.to_stride}, row_bytes, from + begin * rows.from_stride,
           to + begin * rows.to_stride);
  }

  CopyLoop rows;
  std::uint64_t row_bytes;
  const std::byte* from;
  std::byte* to;
  CopyRowsKernel kernel;
};

/// Whether each copy has one short run per row, and all have the same number of rows. Neighbours then probably share
/// cache lines.
bool share_lines(std::span<const RunsCopy> copies) {
  std::uint64_t row_bytes = 0;
  for (const RunsCopy& copy : copies) {
    if (copy.runs->loops.size() != 1 || copy.runs->loops[0].count != copies[0].runs->loops[0].count) return false;
    row_bytes += copy.runs->run_bytes;
  }
  return row_bytes < copies.size() * kShortRowBytes;
}

}  // namespace

std::uint64_t Runs::total_bytes() const {
  std::uint64_t total = run_bytes;
  for (const Loop& loop : loops) total *= loop.count;
  return total;
}

std::uint64_t Runs::a_span_bytes() const {
  std::uint64_t span = run_bytes;
  for (const Loop& loop : loops) span += (loop.count - 1) * loop.a_stride_bytes;
  return span;
}

std::optional<Runs> make_runs(DType dtype, const Dims& size, const Dims& a_shape, const Dims& a_begin,
                              const Dims& b_shape, const Dims& b_begin) {
  return make_strided_runs(dtype, size, c_strides(a_shape), a_begin, c_strides(b_shape), b_begin);
}

std::optional<Runs> make_strided_runs(DType dtype, const Dims& size, const Dims& a_strides, const Dims& a_begin,
                                      const Dims& b_strides, const Dims& b_begin) {
  Runs runs;
  if (volume({a_begin, size}) == 0) return runs;
  // Computes in bits. Folds each dim into the run if it is contiguous in both tensors.
  std::uint64_t run = bits(dtype);
  std::uint64_t a_first = 0;
  std::uint64_t b_first = 0;
  std::vector<Runs::Loop> loops;  // innermost first, in bits
  for (std::size_t d = size.size(); d-- > 0;) {
    const std::uint64_t a_stride = a_strides[d] * bits(dtype);
    const std::uint64_t b_stride = b_strides[d] * bits(dtype);
    a_first += a_begin[d] * a_stride;
    b_first += b_begin[d] * b_stride;
    if (size[d] == 1) continue;
    if (loops.empty() && a_stride == run && b_stride == run)
      run *= size[d];
    else
      loops.push_back({size[d], a_stride, b_stride});
  }
  bool whole_bytes = run % 8 == 0 && a_first % 8 == 0 && b_first % 8 == 0;
  for (Runs::Loop& loop : loops) {
    whole_bytes = whole_bytes && loop.a_stride_bytes % 8 == 0 && loop.b_stride_bytes % 8 == 0;
    loop.a_stride_bytes /= 8;
    loop.b_stride_bytes /= 8;
  }
  if (!whole_bytes) return std::nullopt;
  std::reverse(loops.begin(), loops.end());
  runs.a_begin_bytes = a_first / 8;
  runs.b_begin_bytes = b_first / 8;
  runs.run_bytes = run / 8;
  runs.loops = std::move(loops);
  return runs;
}

Gather gather(const Runs& runs) {
  Gather result{{runs.a_begin_bytes, 0, runs.run_bytes, {}}, runs, 0};
  result.scatter.a_begin_bytes = 0;
  // The loops, sorted by their stride in a, innermost first.
  std::vector<std::size_t> order(runs.loops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return runs.loops[x].a_stride_bytes < runs.loops[y].a_stride_bytes;
  });
  std::uint64_t packed = runs.run_bytes;
  for (const std::size_t i : order) {
    const Runs::Loop& loop = runs.loops[i];
    if (loop.a_stride_bytes == 0) continue;  // the same element repeated
    if (result.reads.loops.empty() && loop.a_stride_bytes == result.reads.run_bytes)
      result.reads.run_bytes *= loop.count;
    else
      result.reads.loops.insert(result.reads.loops.begin(), {loop.count, loop.a_stride_bytes, packed});
    result.scatter.loops[i].a_stride_bytes = packed;
    packed *= loop.count;
  }
  result.packed_bytes = packed;
  return result;
}

Runs swapped(const Runs& runs) {
  Runs result = runs;
  std::swap(result.a_begin_bytes, result.b_begin_bytes);
  for (Runs::Loop& loop : result.loops) std::swap(loop.a_stride_bytes, loop.b_stride_bytes);
  return result;
}

void copy_runs(const Runs& runs, const std::byte* a, std::uint64_t a_origin_bytes, std::byte* b,
               std::uint64_t b_origin_bytes) {
  if (runs.run_bytes == 0) return;
  constexpr CopyLoop kOnce{1, 0, 0};
  Runs grids = runs;
  const auto take_innermost = [&] {
    if (grids.loops.empty()) return kOnce;
    const CopyLoop loop = copy_loop(grids.loops.back());
    grids.loops.pop_back();
    return loop;
  };
  const CopyLoop inner = take_innermost();
  const CopyLoop outer = take_innermost();
  grids.for_each([&](std::uint64_t a_offset, std::uint64_t b_offset) {
    copy_grid(outer, inner, runs.run_bytes, a + (a_offset - a_origin_bytes), b + (b_offset - b_origin_bytes));
  });
}

void copy_runs_together(std::span<const RunsCopy> copies) {
  if (!share_lines(copies)) {
    for (const RunsCopy& copy : copies) copy_runs(*copy.runs, copy.a, copy.a_origin_bytes, copy.b, copy.b_origin_bytes);
    return;
  }
  const std::vector<Part> parts(copies.begin(), copies.end());
  std::uint64_t row_bytes = 0;
  for (const Part& part : parts) row_bytes += part.row_bytes;
  const std::uint64_t rows = parts[0].rows.count;
  const std::uint64_t tile = kCopyTileBytes / std::clamp<std::uint64_t>(row_bytes, 1, kCopyTileBytes);
  for (std::uint64_t begin = 0; begin < rows; begin += tile)
    for (const Part& part : parts) part.copy(begin, std::min(tile, rows - begin));
}

}  // namespace reshard
