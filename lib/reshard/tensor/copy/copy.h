// Strided copies of many short segments of bytes, for data that is split or joined along an inner dim, or transposed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reshard {

/// A loop over `count` segments. The strides are the distances between segments, in bytes.
struct CopyLoop {
  std::uint64_t count;
  std::uint64_t from_stride;
  std::uint64_t to_stride;
};

/// Copies `rows.count` rows of `row_bytes` each. `from` and `to` point to the first row; any alignment. Source rows may
/// overlap, but target rows must not overlap the source or each other. Writes no byte outside the rows. Does not
/// allocate. Thread-safe.
void copy_rows(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// Copies a grid of cells of `cell_bytes`: cell (i, j) is i strides of `outer` and j strides of `inner` from the first
/// cell. The order of the two loops affects neither result nor speed. If cells of 1, 2, 4 or 8 bytes are adjacent along
/// one loop in the source and along the other in the target, they are transposed in blocks.
void copy_grid(const CopyLoop& outer, const CopyLoop& inner, std::uint64_t cell_bytes, const std::byte* from,
               std::byte* to);

/// Best number of bytes to split or join at a time, for all outputs or inputs together, so that each cache line is
/// fetched once.
inline constexpr std::uint64_t kCopyTileBytes = 32768;

}  // namespace reshard
