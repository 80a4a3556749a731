#pragma once

#include <cstdint>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// A tensor divided into blocks that are contiguous in C order: ranges of rows of the outermost dim whose rows fit a
/// block.
class BlockGrid {
 public:
  /// Blocks of at most `max_bytes`, or of the smallest whole number of bytes: one element, or eight rows of a sub-byte
  /// dtype. Blocks of at least `whole_rows` rows of the first dim have a multiple of it.
  BlockGrid(DType dtype, const Dims& shape, std::uint64_t max_bytes, std::uint64_t whole_rows = 1);

  std::uint64_t count() const { return count_; }
  /// Size of the largest block. Exceeds `max_bytes` only if rows of a sub-byte dtype are not whole bytes.
  std::uint64_t block_bytes() const { return block_bytes_; }
  /// Block `index`. Every block but the last along its dim has the same size.
  Box block(std::uint64_t index) const;
  /// Index of the block that begins with element `first_elem` of the tensor.
  std::uint64_t block_at(std::uint64_t first_elem) const;
  /// Number of rows of `dim` between positions where blocks begin; the size of `dim` if blocks do not divide it.
  std::uint64_t rows_between(std::size_t dim) const;

 private:
  Dims shape_;
  std::size_t dim_ = 0;        // the dim that is divided; a block has one index of each dim before it
  std::uint64_t rows_ = 1;     // rows of that dim per block
  std::uint64_t per_dim_ = 1;  // blocks along that dim
  std::uint64_t count_ = 0;
  std::uint64_t block_bytes_ = 0;
};

}  // namespace reshard
