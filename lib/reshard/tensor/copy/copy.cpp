#include "reshard/tensor/copy/copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/tensor/copy/copy_kernels.h"

namespace reshard {
namespace {

/// Transposes cells that are single elements. \returns false if the cells cannot be transposed in blocks.
bool transpose(const CopyLoop& outer, const CopyLoop& inner, std::uint64_t cell_bytes, const std::byte* from,
               std::byte* to) {
  const bool inner_is_columns = inner.from_stride == cell_bytes && outer.to_stride == cell_bytes;
  const bool outer_is_columns = outer.from_stride == cell_bytes && inner.to_stride == cell_bytes;
  if (!inner_is_columns && !outer_is_columns) return false;
  const TransposeKernel kernel = simd_transpose_kernel(cell_bytes);
  return kernel && (inner_is_columns ? kernel(outer, inner, from, to) : kernel(inner, outer, from, to));
}

}  // namespace

void copy_rows_scalar(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to) {
  if (row_bytes == 0) return;  // the pointers may be null, which memcpy does not allow
  for (std::uint64_t i = 0; i < rows.count; ++i)
    std::memcpy(to + i * rows.to_stride, from + i * rows.from_stride, row_bytes);
}

CopyRowsKernel copy_rows_kernel(std::uint64_t row_bytes) {
  if (row_bytes == 0 || row_bytes > kShortRowBytes) return copy_rows_scalar;
  const CopyRowsKernel kernel = simd_copy_rows_kernel();
  return kernel ? kernel : copy_rows_scalar;
}

void copy_rows(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to) {
  copy_rows_kernel(row_bytes)(rows, row_bytes, from, to);
}

void copy_grid(const CopyLoop& outer_loop, const CopyLoop& inner_loop, std::uint64_t cell_bytes, const std::byte* from,
               std::byte* to) {
  if (transpose(outer_loop, inner_loop, cell_bytes, from, to)) return;
  CopyLoop outer = outer_loop;
  CopyLoop inner = inner_loop;
  std::uint64_t tile = inner.count;
  const bool against_order = outer.from_stride < inner.from_stride || outer.to_stride < inner.to_stride;
  if (outer.count > 1 && cell_bytes < kShortRowBytes && against_order) {
    // One side accesses memory in the order of the other loop. With tiles, each cache line is used completely before it
    // is evicted.
    if (outer.count > inner.count) std::swap(outer, inner);
    const std::uint64_t across_bytes = std::max<std::uint64_t>(1, outer.count * cell_bytes);
    tile = std::max(
        {kCopyTileBytes / across_bytes, kShortRowBytes / std::max<std::uint64_t>(1, cell_bytes), std::uint64_t{1}});
  }
  const CopyRowsKernel copy = copy_rows_kernel(cell_bytes);
  for (std::uint64_t begin = 0; begin < inner.count; begin += tile) {
    const CopyLoop part{std::min(tile, inner.count - begin), inner.from_stride, inner.to_stride};
    for (std::uint64_t i = 0; i < outer.count; ++i)
      copy(part, cell_bytes, from + i * outer.from_stride + begin * inner.from_stride,
           to + i * outer.to_stride + begin * inner.to_stride);
  }
}

}  // namespace reshard
