#include "reshard/tensor/runs.h"

#include <algorithm>
#include <cstring>

namespace reshard {
namespace {

std::uint64_t span_bytes(const Runs& runs, std::uint64_t Runs::Loop::*stride) {
  std::uint64_t span = runs.run_bytes;
  for (const Runs::Loop& loop : runs.loops) span += (loop.count - 1) * loop.*stride;
  return span;
}

}  // namespace

std::uint64_t Runs::total_bytes() const {
  std::uint64_t total = run_bytes;
  for (const Loop& loop : loops) total *= loop.count;
  return total;
}

std::uint64_t Runs::a_span_bytes() const {
  return span_bytes(*this, &Loop::a_stride_bytes);
}
std::uint64_t Runs::b_span_bytes() const {
  return span_bytes(*this, &Loop::b_stride_bytes);
}

std::optional<Runs> make_runs(DType dtype, const Dims& size, const Dims& a_shape, const Dims& a_begin,
                              const Dims& b_shape, const Dims& b_begin) {
  Runs runs;
  if (volume({a_begin, size}) == 0) return runs;
  // Everything is counted in bits on the way in; a dim that continues the run in both tensors is folded into it.
  std::uint64_t a_stride = bits(dtype);
  std::uint64_t b_stride = bits(dtype);
  std::uint64_t run = bits(dtype);
  std::uint64_t a_first = 0;
  std::uint64_t b_first = 0;
  std::vector<Runs::Loop> loops;  // innermost first, in bits
  for (std::size_t d = size.size(); d-- > 0;) {
    a_first += a_begin[d] * a_stride;
    b_first += b_begin[d] * b_stride;
    const bool continues = loops.empty() && a_stride == run && b_stride == run;
    if (continues)
      run *= size[d];
    else if (size[d] > 1)
      loops.push_back({size[d], a_stride, b_stride});
    a_stride *= a_shape[d];
    b_stride *= b_shape[d];
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

void copy_runs(const Runs& runs, const std::byte* a, std::uint64_t a_origin_bytes, std::byte* b,
               std::uint64_t b_origin_bytes) {
  runs.for_each([&](std::uint64_t a_offset, std::uint64_t b_offset) {
    std::memcpy(b + (b_offset - b_origin_bytes), a + (a_offset - a_origin_bytes), runs.run_bytes);
  });
}

}  // namespace reshard
