// The kernels of copy.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/tensor/copy/copy.h"

namespace reshard {

/// Kernels copy rows of up to this size; longer rows are worth a call of memcpy each.
inline constexpr std::uint64_t kShortRowBytes = 256;

/// copy_rows for rows of 1 to kShortRowBytes bytes.
using CopyRowsKernel = void (*)(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// Copies a matrix whose columns are adjacent in the source and whose rows are adjacent in the target:
/// `rows.from_stride` is the distance between rows in the source, `columns.to_stride` the distance between columns in
/// the target. Returns false without copying if there are too few rows or columns for a block.
using TransposeKernel = bool (*)(const CopyLoop& rows, const CopyLoop& columns, const std::byte* from, std::byte* to);

/// The specification: one memcpy per row, of any size.
void copy_rows_scalar(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to);

/// Return the kernels for the current instruction set (simd.h), or null.
CopyRowsKernel simd_copy_rows_kernel();
TransposeKernel simd_transpose_kernel(std::uint64_t elem_bytes);

/// Returns the fastest kernel for rows of this size.
CopyRowsKernel copy_rows_kernel(std::uint64_t row_bytes);

}  // namespace reshard
