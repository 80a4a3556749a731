#include "reshard/engine/units/blocks.h"

#include <algorithm>

namespace reshard {

BlockGrid::BlockGrid(DType dtype, const Dims& shape, std::uint64_t max_bytes, std::uint64_t whole_rows)
    : shape_(shape) {
  const std::uint64_t elems = num_elems(shape).value_or(0);
  if (elems == 0) return;
  if (shape.empty()) {
    count_ = 1;
    block_bytes_ = num_bytes(dtype, shape).value_or(0);
    return;
  }
  const std::uint64_t max_bits = max_bytes * 8;
  std::uint64_t row_bits = elems / shape[0] * bits(dtype);  // of one index of dim_
  while (row_bits > max_bits && dim_ + 1 < shape.size() && row_bits % 8 == 0) {
    ++dim_;
    row_bits /= shape[dim_];
  }
  rows_ = std::max<std::uint64_t>(1, max_bits / row_bits);
  if (bits(dtype) % 8 != 0) rows_ = std::max<std::uint64_t>(8, rows_ / 8 * 8);  // whole bytes, whatever a row has
  if (dim_ == 0 && whole_rows > 0 && rows_ >= whole_rows) rows_ = rows_ / whole_rows * whole_rows;
  rows_ = std::min(rows_, shape[dim_]);
  block_bytes_ = rows_ * row_bits / 8;
  per_dim_ = (shape[dim_] + rows_ - 1) / rows_;
  count_ = per_dim_;
  for (std::size_t d = 0; d < dim_; ++d) count_ *= shape[d];
}

Box BlockGrid::block(std::uint64_t index) const {
  Box box = whole(shape_);
  if (shape_.empty()) return box;
  const std::uint64_t along = index % per_dim_;
  box.begin[dim_] = along * rows_;
  box.size[dim_] = std::min(rows_, shape_[dim_] - box.begin[dim_]);
  std::uint64_t rest = index / per_dim_;
  for (std::size_t d = dim_; d-- > 0;) {
    box.begin[d] = rest % shape_[d];
    box.size[d] = 1;
    rest /= shape_[d];
  }
  return box;
}

std::uint64_t BlockGrid::block_at(std::uint64_t first_elem) const {
  if (shape_.empty()) return 0;
  for (std::size_t d = dim_ + 1; d < shape_.size(); ++d) first_elem /= shape_[d];
  return first_elem / shape_[dim_] * per_dim_ + first_elem % shape_[dim_] / rows_;
}

std::uint64_t BlockGrid::rows_between(std::size_t dim) const {
  return dim < dim_ ? 1 : dim == dim_ ? rows_ : shape_[dim];
}

}  // namespace reshard
