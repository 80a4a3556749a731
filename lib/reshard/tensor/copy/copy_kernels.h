// What copy.cpp chooses from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/tensor/copy/copy.h"

namespace reshard {

/// Rows of at most this size are copied by kernels; longer ones are worth a call of memcpy each.
inline constexpr std::uint64_t kShortRowBytes = 256;

/// copy_rows of 1 to kShortRowBytes.
using CopyRowsKernel = void (*)(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// Copies a matrix whose columns lie beside each other in the source and whose rows do in the target:
/// `rows.from_stride` is from a row to the next in the source, `columns.to_stride` from a column to the next in the
/// target. Returns false, and does nothing, if there are too few rows or columns for its blocks.
using TransposeKernel = bool (*)(const CopyLoop& rows, const CopyLoop& columns, const std::byte* from, std::byte* to);

/// The specification: a memcpy a row, of any size.
void copy_rows_scalar(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// The kernels for the instruction set in use (simd.h); null where there are none.
CopyRowsKernel simd_copy_rows_kernel();
TransposeKernel simd_transpose_kernel(std::uint64_t elem_bytes);

/// The best for rows of this size.
CopyRowsKernel copy_rows_kernel(std::uint64_t row_bytes);

}  // namespace reshard
