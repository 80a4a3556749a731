// Copies of many short segments of bytes, from any distance to any other. Data that is cut or put together along an
// inner dim, or transposed, is moved by these.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reshard {

/// `count` places that lie these distances apart, in bytes, where bytes come from and where they go.
struct CopyLoop {
  std::uint64_t count;
  std::uint64_t from_stride;
  std::uint64_t to_stride;
};

/// Copies `rows.count` rows of `row_bytes` each. `from` and `to` are the first row's; any alignment. Rows may begin
/// anywhere in the source, but nothing written may overlap the source or another row. Touches no byte beside the rows.
/// Allocates nothing; safe from several threads.
void copy_rows(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// The same for a grid: cell (i, j) of `cell_bytes` is i strides of `outer` and j of `inner` from the first. Which of
/// the two loops is which matters for neither result nor speed. Cells of 1, 2, 4 or 8 bytes that lie beside each other
/// along one loop in the source and along the other in the target are transposed in blocks.
void copy_grid(const CopyLoop& outer, const CopyLoop& inner, std::uint64_t cell_bytes, const std::byte* from,
               std::byte* to);

/// A block of rows is best cut, or put together, this many bytes at a time: of all outputs or inputs taken together, so
/// that each cache line is fetched once.
inline constexpr std::uint64_t kCopyTileBytes = 32768;

}  // namespace reshard
