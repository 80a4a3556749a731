#include "reshard/tensor/runs.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace reshard {
namespace {

/// The two innermost loops of `runs` with elements of `Bytes` each, in tiles that stay in the first cache whichever way
/// the two sides run.
template <std::size_t Bytes>
void copy_plane(const Runs::Loop& outer, const Runs::Loop& inner, const std::byte* a, std::byte* b) {
  constexpr std::uint64_t kTile = 64;
  for (std::uint64_t i0 = 0; i0 < outer.count; i0 += kTile)
    for (std::uint64_t j0 = 0; j0 < inner.count; j0 += kTile)
      for (std::uint64_t i = i0; i < std::min(outer.count, i0 + kTile); ++i) {
        const std::byte* from = a + i * outer.a_stride_bytes + j0 * inner.a_stride_bytes;
        std::byte* to = b + i * outer.b_stride_bytes + j0 * inner.b_stride_bytes;
        for (std::uint64_t j = j0; j < std::min(inner.count, j0 + kTile); ++j) {
          std::memcpy(to, from, Bytes);
          from += inner.a_stride_bytes;
          to += inner.b_stride_bytes;
        }
      }
}

using CopyPlane = void (*)(const Runs::Loop&, const Runs::Loop&, const std::byte*, std::byte*);

/// Null where runs are not single elements.
CopyPlane plane_copier(std::uint64_t run_bytes) {
  switch (run_bytes) {
    case 1: return copy_plane<1>;
    case 2: return copy_plane<2>;
    case 4: return copy_plane<4>;
    case 8: return copy_plane<8>;
    case 16: return copy_plane<16>;
    default: return nullptr;
  }
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
  // Everything is counted in bits on the way in; a dim that continues the run in both tensors is folded into it.
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

Runs swapped(const Runs& runs) {
  Runs other = runs;
  std::swap(other.a_begin_bytes, other.b_begin_bytes);
  for (Runs::Loop& loop : other.loops) std::swap(loop.a_stride_bytes, loop.b_stride_bytes);
  return other;
}

Gather gather(const Runs& runs) {
  Gather result{{runs.a_begin_bytes, 0, runs.run_bytes, {}}, runs, 0};
  result.scatter.a_begin_bytes = 0;
  // The loops as they lie in a, innermost first.
  std::vector<std::size_t> order(runs.loops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return runs.loops[x].a_stride_bytes < runs.loops[y].a_stride_bytes;
  });
  std::uint64_t packed = runs.run_bytes;
  for (const std::size_t i : order) {
    const Runs::Loop& loop = runs.loops[i];
    if (loop.a_stride_bytes == 0) continue;  // one element for all
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

void copy_runs(const Runs& runs, const std::byte* a, std::uint64_t a_origin_bytes, std::byte* b,
               std::uint64_t b_origin_bytes) {
  if (const CopyPlane copy = runs.loops.size() < 2 ? nullptr : plane_copier(runs.run_bytes)) {
    Runs planes = runs;
    const Runs::Loop inner = planes.loops.back();
    planes.loops.pop_back();
    const Runs::Loop outer = planes.loops.back();
    planes.loops.pop_back();
    planes.for_each([&](std::uint64_t a_offset, std::uint64_t b_offset) {
      copy(outer, inner, a + (a_offset - a_origin_bytes), b + (b_offset - b_origin_bytes));
    });
    return;
  }
  runs.for_each([&](std::uint64_t a_offset, std::uint64_t b_offset) {
    std::memcpy(b + (b_offset - b_origin_bytes), a + (a_offset - a_origin_bytes), runs.run_bytes);
  });
}

}  // namespace reshard
