#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// A box in two tensors a and b: runs of bytes that are contiguous in both, repeated by `loops`. Both sides have the
/// same elements in the same order.
struct Runs {
  struct Loop {
    std::uint64_t count;
    std::uint64_t a_stride_bytes;
    std::uint64_t b_stride_bytes;
  };

  std::uint64_t a_begin_bytes = 0;  // offset of the box in tensor a
  std::uint64_t b_begin_bytes = 0;
  std::uint64_t run_bytes = 0;
  std::vector<Loop> loops;  // outermost first

  std::uint64_t total_bytes() const;
  /// Distance in a from the first byte of the box to the end of its last byte; equal to total_bytes() if the box is
  /// contiguous.
  std::uint64_t a_span_bytes() const;

  /// Calls `use(a_offset_bytes, b_offset_bytes)` for each run. Offsets are relative to the starts of the tensors.
  template <typename Use>
  void for_each(Use&& use) const;
};

/// Returns the runs of a box of `size` elements at `a_begin` in a tensor of `a_shape` and at `b_begin` in a tensor of
/// `b_shape`. Both have the ndim of the box and contain it. Returns std::nullopt if the box does not begin and end at
/// whole bytes (it would cut a packed byte of a sub-byte dtype).
std::optional<Runs> make_runs(DType dtype, const Dims& size, const Dims& a_shape, const Dims& a_begin,
                              const Dims& b_shape, const Dims& b_begin);

/// Same as make_runs for strided tensors; strides are in elements, one per dim. A stride of 0 repeats an element; it is
/// not allowed in b, which is written.
std::optional<Runs> make_strided_runs(DType dtype, const Dims& size, const Dims& a_strides, const Dims& a_begin,
                                      const Dims& b_strides, const Dims& b_begin);

/// Reads a box whose runs are short because a and b have different orders: first reads the longest contiguous ranges of
/// a and packs them one after another, then copies from the packed bytes to b.
struct Gather {
  Runs reads;    // a is the tensor, b the packed bytes
  Runs scatter;  // a is the packed bytes, b is unchanged
  std::uint64_t packed_bytes = 0;
};
Gather gather(const Runs& runs);

/// Returns the same box with a and b exchanged, for the reverse copy.
Runs swapped(const Runs& runs);

/// Copies a box. `a` points to byte `a_origin_bytes` of tensor a, and `b` to byte `b_origin_bytes` of tensor b; the two
/// must not overlap. Fast for runs of any size (copy.h).
void copy_runs(const Runs& runs, const std::byte* a, std::uint64_t a_origin_bytes, std::byte* b,
               std::uint64_t b_origin_bytes);

/// Arguments of copy_runs; borrowed.
struct RunsCopy {
  const Runs* runs;
  const std::byte* a;
  std::uint64_t a_origin_bytes;
  std::byte* b;
  std::uint64_t b_origin_bytes;
};

/// Same as copy_runs for each of `copies`, in any order. If a block is split or joined along an inner dim, copies all
/// its parts side by side, so that shared cache lines are fetched once.
void copy_runs_together(std::span<const RunsCopy> copies);

// Template implementation.

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
