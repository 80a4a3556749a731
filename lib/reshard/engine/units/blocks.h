#pragma once

#include <cstdint>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// A tensor cut into blocks that lie in one piece in C order: ranges of rows of the outermost dim whose rows fit a
/// block.
class BlockGrid {
 public:
  /// Blocks of at most `max_bytes`, or of the least that is whole bytes: an element, or eight rows of a sub-byte dtype.
  BlockGrid(DType dtype, const Dims& shape, std::uint64_t max_bytes);

  std::uint64_t count() const { return count_; }
  /// Of the largest block: more than `max_bytes` only for a sub-byte dtype whose rows are not whole bytes.
  std::uint64_t block_bytes() const { return block_bytes_; }
  /// Block `index`; every block but the last along its dim has the same size.
  Box block(std::uint64_t index) const;
  /// The block that begins with element `first_elem` of the tensor.
  std::uint64_t block_at(std::uint64_t first_elem) const;
  /// Blocks begin at multiples of so many rows of dim `dim`, of which the tensor may be cut between rows; its size if
  /// there is no such place.
  std::uint64_t rows_between(std::size_t dim) const;

 private:
  Dims shape_;
  std::size_t dim_ = 0;        // the dim that is cut; dims before it are taken one index at a time
  std::uint64_t rows_ = 1;     // of that dim, per block
  std::uint64_t per_dim_ = 1;  // blocks along that dim
  std::uint64_t count_ = 0;
  std::uint64_t block_bytes_ = 0;
};

}  // namespace reshard
