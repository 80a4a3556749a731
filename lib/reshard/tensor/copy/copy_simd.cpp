// Copies of short rows without a call per row, and transposes. Highway compiles this file once per instruction set.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "reshard/tensor/copy/copy_kernels.h"
#include "reshard/tensor/values/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reshard/tensor/copy/copy_simd.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace reshard {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

CopyRowsKernel find_copy_rows() {
  return nullptr;
}

TransposeKernel find_transpose(std::uint64_t) {
  return nullptr;
}

#else

namespace hn = hwy::HWY_NAMESPACE;

const std::uint8_t* as_u8(const std::byte* bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

std::uint8_t* as_u8(std::byte* bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes);
}

/// Copies rows of exactly `sizeof(Word)` bytes.
template <typename Word>
void copy_words(const CopyLoop& rows, const std::byte* from, std::byte* to) {
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    std::memcpy(to, from, sizeof(Word));
    from += rows.from_stride;
    to += rows.to_stride;
  }
}

/// Copies rows of one to two `Word`s: the first and the last one, which may overlap.
template <typename Word>
void copy_word_pairs(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to) {
  const std::uint64_t last = row_bytes - sizeof(Word);
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    Word head;
    Word tail;
    std::memcpy(&head, from, sizeof(Word));
    std::memcpy(&tail, from + last, sizeof(Word));
    std::memcpy(to, &head, sizeof(Word));
    std::memcpy(to + last, &tail, sizeof(Word));
    from += rows.from_stride;
    to += rows.to_stride;
  }
}

/// Copies rows of at least a vector of `kBytes` (or the largest vector of the CPU): vector by vector; the last one may
/// overlap the previous one. Vectors of 64 bytes were no faster than vectors of 32.
template <std::size_t kBytes>
void copy_vectors(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from_bytes, std::byte* to_bytes) {
  const hn::CappedTag<std::uint8_t, kBytes> d;
  const std::uint8_t* from = as_u8(from_bytes);
  std::uint8_t* to = as_u8(to_bytes);
  const std::uint64_t last = row_bytes - hn::Lanes(d);
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    for (std::uint64_t at = 0; at < last; at += hn::Lanes(d)) hn::StoreU(hn::LoadU(d, from + at), d, to + at);
    hn::StoreU(hn::LoadU(d, from + last), d, to + last);
    from += rows.from_stride;
    to += rows.to_stride;
  }
}

void copy_short_rows(const CopyLoop& rows, std::uint64_t row_bytes, const std::byte* from, std::byte* to) {
  switch (row_bytes) {
    case 1: return copy_words<std::uint8_t>(rows, from, to);
    case 2: return copy_words<std::uint16_t>(rows, from, to);
    case 4: return copy_words<std::uint32_t>(rows, from, to);
    case 8: return copy_words<std::uint64_t>(rows, from, to);
    default: break;
  }
  if (row_bytes < 4) return copy_word_pairs<std::uint16_t>(rows, row_bytes, from, to);
  if (row_bytes < 8) return copy_word_pairs<std::uint32_t>(rows, row_bytes, from, to);
  if (row_bytes < 16) return copy_word_pairs<std::uint64_t>(rows, row_bytes, from, to);
  if (row_bytes < 32) return copy_vectors<16>(rows, row_bytes, from, to);
  return copy_vectors<32>(rows, row_bytes, from, to);
}

/// Transposes matrices in blocks that fill eight vectors. The index of an element in the block has three bits that
/// select the vector. Below these are the bits that select the lane in a group of 16 bytes. Interleaving the vectors
/// rotates the index to the left by one bit. After as many rounds as a lane index has bits, the bits that selected the
/// vector select the lane. Processes `kGroups` blocks at once, in vectors of `kGroups` groups of 16 bytes.
template <typename T, std::size_t kGroups>
struct Block {
  static constexpr std::size_t kLanes = 16 / sizeof(T);
  static constexpr std::size_t kColumns = std::min<std::size_t>(kLanes, 8);
  static constexpr std::size_t kGroupRows = 8 * kLanes / kColumns;
  static constexpr std::size_t kRows = kGroupRows * kGroups;
  static constexpr std::size_t kLaneBits = kLanes == 16 ? 4 : kLanes == 8 ? 3 : kLanes == 4 ? 2 : 1;
  static_assert(kGroups == 1 || kColumns == 8);

  using D = hn::FixedTag<T, kLanes * kGroups>;
  using V = hn::Vec<D>;
  using Bytes = hn::FixedTag<std::uint8_t, 16 * kGroups>;

  /// Loads the first 16 bytes of vector `i`: a part of a row or, for bytes, of two rows.
  static HWY_INLINE auto load_group(const std::uint8_t* from, std::uint64_t stride, std::size_t i) {
    const hn::FixedTag<std::uint8_t, 16> d16;
    if constexpr (kLanes == 16) {
      const hn::FixedTag<std::uint8_t, 8> d8;
      return hn::Combine(d16, hn::LoadU(d8, from + (2 * i + 1) * stride), hn::LoadU(d8, from + 2 * i * stride));
    } else {
      // So that the lowest bits of the row, in order, become the lane.
      const std::size_t row = (i << kLaneBits | i >> (3 - kLaneBits)) & 7;
      return hn::LoadU(d16, from + row * stride);
    }
  }

  static HWY_INLINE V load(const std::uint8_t* from, std::uint64_t stride, std::size_t i) {
    const auto low = load_group(from, stride, i);
    if constexpr (kGroups == 1) {
      return hn::BitCast(D(), low);
    } else {
      const auto high = load_group(from + kGroupRows * stride, stride, i);
      return hn::BitCast(D(), hn::Combine(Bytes(), high, low));
    }
  }

  static HWY_INLINE void store(V v, std::uint8_t* to, std::uint64_t stride, std::size_t i) {
    hn::StoreU(hn::BitCast(Bytes(), v), Bytes(), to + i % kColumns * stride + i / kColumns * 16);
  }

  /// Interleaves kRounds times, then stores. Separate variables, because some instruction sets do not allow arrays of
  /// vectors.
  template <std::size_t kRounds>
  static HWY_INLINE void finish(V v0, V v1, V v2, V v3, V v4, V v5, V v6, V v7, std::uint8_t* to,
                                std::uint64_t stride) {
    if constexpr (kRounds == 0) {
      store(v0, to, stride, 0);
      store(v1, to, stride, 1);
      store(v2, to, stride, 2);
      store(v3, to, stride, 3);
      store(v4, to, stride, 4);
      store(v5, to, stride, 5);
      store(v6, to, stride, 6);
      store(v7, to, stride, 7);
    } else {
      const D d;
      finish<kRounds - 1>(hn::InterleaveLower(d, v0, v4), hn::InterleaveUpper(d, v0, v4),
                          hn::InterleaveLower(d, v1, v5), hn::InterleaveUpper(d, v1, v5),
                          hn::InterleaveLower(d, v2, v6), hn::InterleaveUpper(d, v2, v6),
                          hn::InterleaveLower(d, v3, v7), hn::InterleaveUpper(d, v3, v7), to, stride);
    }
  }

  static HWY_INLINE void transpose(const std::uint8_t* from, std::uint64_t from_stride, std::uint8_t* to,
                                   std::uint64_t to_stride) {
    finish<kLaneBits>(load(from, from_stride, 0), load(from, from_stride, 1), load(from, from_stride, 2),
                      load(from, from_stride, 3), load(from, from_stride, 4), load(from, from_stride, 5),
                      load(from, from_stride, 6), load(from, from_stride, 7), to, to_stride);
  }
};

/// Transposes a tile of at most 64 bytes each way: a cache line of the source and of the target. Blocks at the edges
/// overlap the previous ones.
template <typename B>
void transpose_tile(std::size_t elem_bytes, const CopyLoop& rows, const CopyLoop& columns, const std::byte* from,
                    std::byte* to) {
  // Rows at a distance of a power of two evict each other from the cache; here they are read once.
  HWY_ALIGN std::uint8_t packed[64 * 64];
  const std::size_t row_bytes = columns.count * elem_bytes;
  for (std::uint64_t r = 0; r < rows.count; ++r) {
    const std::byte* row = from + r * rows.from_stride;
    if (row_bytes == 64)
      std::memcpy(packed + r * 64, row, 64);  // the common case, without a call
    else
      std::memcpy(packed + r * 64, row, row_bytes);
  }
  for (std::uint64_t c = 0; c < columns.count; c += B::kColumns) {
    const std::uint64_t column = std::min(c, columns.count - B::kColumns);
    for (std::uint64_t r = 0; r < rows.count; r += B::kRows) {
      const std::uint64_t row = std::min(r, rows.count - B::kRows);
      B::transpose(packed + row * 64 + column * elem_bytes, 64,
                   as_u8(to + column * columns.to_stride + row * elem_bytes), columns.to_stride);
    }
  }
}

/// Tiles at the edges overlap the previous ones, too.
template <typename B>
bool transpose_tiles(std::size_t elem_bytes, const CopyLoop& rows, const CopyLoop& columns, const std::byte* from,
                     std::byte* to) {
  if (rows.count < B::kRows || columns.count < B::kColumns) return false;
  const CopyLoop tile_rows{std::min<std::uint64_t>(64 / elem_bytes, rows.count), rows.from_stride, rows.to_stride};
  const CopyLoop tile_columns{std::min<std::uint64_t>(64 / elem_bytes, columns.count), columns.from_stride,
                              columns.to_stride};
  for (std::uint64_t r = 0; r < rows.count; r += tile_rows.count) {
    const std::uint64_t row = std::min(r, rows.count - tile_rows.count);
    for (std::uint64_t c = 0; c < columns.count; c += tile_columns.count) {
      const std::uint64_t column = std::min(c, columns.count - tile_columns.count);
      transpose_tile<B>(elem_bytes, tile_rows, tile_columns, from + row * rows.from_stride + column * elem_bytes,
                        to + column * columns.to_stride + row * elem_bytes);
    }
  }
  return true;
}

template <typename T>
bool transpose_elements(const CopyLoop& rows, const CopyLoop& columns, const std::byte* from, std::byte* to) {
  using One = Block<T, 1>;
  // Two groups at once are faster for elements that need more rounds.
  if constexpr (sizeof(T) <= 2 && HWY_MAX_BYTES >= 32 && !HWY_HAVE_SCALABLE) {
    using Two = Block<T, 2>;
    if (transpose_tiles<Two>(sizeof(T), rows, columns, from, to)) return true;
  }
  return transpose_tiles<One>(sizeof(T), rows, columns, from, to);
}

CopyRowsKernel find_copy_rows() {
  return copy_short_rows;
}

TransposeKernel find_transpose(std::uint64_t elem_bytes) {
  switch (elem_bytes) {
    case 1: return transpose_elements<std::uint8_t>;
    case 2: return transpose_elements<std::uint16_t>;
    case 4: return transpose_elements<std::uint32_t>;
    case 8: return transpose_elements<std::uint64_t>;
    default: return nullptr;
  }
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace reshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace reshard {

HWY_EXPORT(find_copy_rows);
HWY_EXPORT(find_transpose);

CopyRowsKernel simd_copy_rows_kernel() {
  return simd_is_scalar() ? nullptr : HWY_DYNAMIC_DISPATCH(find_copy_rows)();
}

TransposeKernel simd_transpose_kernel(std::uint64_t elem_bytes) {
  return simd_is_scalar() ? nullptr : HWY_DYNAMIC_DISPATCH(find_transpose)(elem_bytes);
}

}  // namespace reshard
#endif
