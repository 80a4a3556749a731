#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// One box as it lies in two tensors a and b at once: runs of bytes contiguous in both, repeated by `loops`. The box's
/// elements are the same, in the same order, on both sides.
struct Runs {
  struct Loop {
    std::uint64_t count;
    std::uint64_t a_stride_bytes;
    std::uint64_t b_stride_bytes;
  };

  std::uint64_t a_begin_bytes = 0;  // from the start of tensor a to the box's first byte
  std::uint64_t b_begin_bytes = 0;
  std::uint64_t run_bytes = 0;
  std::vector<Loop> loops;  // outermost first

  std::uint64_t total_bytes() const;
  /// From the box's first byte to past its last in a; equal to total_bytes() where it lies in one piece.
  std::uint64_t a_span_bytes() const;

  /// Calls `use(a_offset_bytes, b_offset_bytes)` for each run, offsets counted from the tensors' starts.
  template <typename Use>
  void for_each(Use&& use) const;
};

/// The runs of a box of `size` elements that begins at `a_begin` in a tensor of `a_shape` and at `b_begin` in one of
/// `b_shape`; both have the box's ndim, and the box fits both. Nothing if the box does not begin and end at whole bytes
/// (a cut through a packed byte of a sub-byte dtype).
std::optional<Runs> make_runs(DType dtype, const Dims& size, const Dims& a_shape, const Dims& a_begin,
                              const Dims& b_shape, const Dims& b_begin);

/// The same for tensors whose elements lie at `a_strides` and `b_strides`, in elements, one a dim. A stride of 0
/// repeats an element; b, which is written, has none.
std::optional<Runs> make_strided_runs(DType dtype, const Dims& size, const Dims& a_strides, const Dims& a_begin,
                                      const Dims& b_strides, const Dims& b_begin);

/// How to read a box whose runs are short because a is not ordered as b is: first the longest ranges that lie in one
/// piece in a, packed one after the other, then from there to b.
struct Gather {
  Runs reads;    // a is the tensor, b the packed bytes
  Runs scatter;  // a is the packed bytes, b as before
  std::uint64_t packed_bytes = 0;
};
Gather gather(const Runs& runs);

/// The same box with a and b exchanged: what was read is written.
Runs swapped(const Runs& runs);

/// Copies a box from bytes that begin `a_origin_bytes` into tensor a, to bytes that begin `b_origin_bytes` into tensor
/// b; the two must not overlap. Fast for runs of any size (copy.h).
void copy_runs(const Runs& runs, const std::byte* a, std::uint64_t a_origin_bytes, std::byte* b,
               std::uint64_t b_origin_bytes);

/// The arguments of a copy_runs; borrows them.
struct RunsCopy {
  const Runs* runs;
  const std::byte* a;
  std::uint64_t a_origin_bytes;
  std::byte* b;
  std::uint64_t b_origin_bytes;
};

/// As copy_runs for each, in no certain order. Where a block is cut along an inner dim, or put together along one, all
/// its parts go through memory side by side: cache lines that they share are fetched once.
void copy_runs_together(std::span<const RunsCopy> copies);

// Implementation of the template.

template <typename Use>
void Runs::for_each(Use&& use) const {
  if (run_bytes == 0) return;
  std::vector<std::uint64_t> index(loops.size(), 0);
  std::uint64_t a = a_begin_bytes;
  std::uint64_t b = b_begin_bytes;
  while (true) {
    use(a, b);
    std::size_t level = loops.size();
    while (level > 0) {
      const Loop& loop = loops[level - 1];
      a += loop.a_stride_bytes;
      b += loop.b_stride_bytes;
      if (++index[level - 1] < loop.count) break;
      a -= loop.count * loop.a_stride_bytes;
      b -= loop.count * loop.b_stride_bytes;
      index[level - 1] = 0;
      --level;
    }
    if (level == 0) return;
  }
}

}  // namespace reshard
