#include "reshard/engine/block_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

bool is_strided(const Layout* layout, const std::optional<Reading>& reading) {
  if (!layout || layout->strides.empty() || !reading) return false;
  return std::any_of(reading->reads.begin(), reading->reads.end(),
                     [&](const Piece& piece) { return layout->strides.count(piece.stored) > 0; });
}

}  // namespace

std::uint64_t BlockQueue::block_bytes_of(const Transfer& transfer) const {
  const bool strided = is_strided(program_.source, transfer.source) || is_strided(program_.against, transfer.against);
  std::uint64_t bytes = strided ? strided_block_bytes_ : block_bytes_;
  // The block after a cast, too, has to fit.
  if (transfer.result && bits(transfer.result->dtype) > bits(transfer.tensor->dtype))
    bytes = bytes * bits(transfer.tensor->dtype) / bits(transfer.result->dtype);
  return bytes;
}

bool BlockQueue::next(Item& item) {
  const std::lock_guard lock(mutex_);
  while (!grid_ || block_ == grid_->count()) {
    if (transfer_ == program_.transfers.size()) return false;
    const Transfer& transfer = program_.transfers[transfer_++];
    const LogicalTensor& tensor = *transfer.tensor;
    const std::uint64_t block_bytes = block_bytes_of(transfer);
    grid_ = std::make_unique<BlockGrid>(tensor.dtype, tensor.shape, block_bytes);
    if (grid_->block_bytes() > std::max(block_bytes, kBlockBytes))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("its rows are not whole bytes, and eight of them take {}, which is "
                              "too much to hold in memory at once",
                              format_bytes(grid_->block_bytes())))
          .tensor(tensor.name);
    block_ = 0;
  }
  item = {transfer_ - 1, block_, grid_->block(block_)};
  ++block_;
  return true;
}

}  // namespace reshard
