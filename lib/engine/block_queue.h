#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "reshard/engine/blocks.h"
#include "reshard/plan/program.h"

namespace reshard {

/// The most that a block has where memory is no concern: it stays in the second cache, and is worth a system call.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
/// Of a matrix that lies in columns, a block of rows is short ranges: the more rows, the longer.
inline constexpr std::uint64_t kStridedBlockBytes = std::uint64_t{32} << 20;

/// Work to be had: the next block of the next tensor, in order. Thread-safe.
class BlockQueue {
 public:
  struct Item {
    std::size_t transfer;
    std::uint64_t block;
    Box box;
  };

  /// Blocks of at most `block_bytes`; `strided_block_bytes` where a tensor is read from one that is not in C order.
  BlockQueue(const Program& program, std::uint64_t block_bytes, std::uint64_t strided_block_bytes)
      : program_(program), block_bytes_(block_bytes), strided_block_bytes_(strided_block_bytes) {}

  /// \returns false when there is nothing left.
  /// \throws Error kUnsupported for a tensor of which no block of whole bytes is small enough.
  bool next(Item& item);

 private:
  std::uint64_t block_bytes_of(const Transfer& transfer) const;

  const Program& program_;
  std::uint64_t block_bytes_;
  std::uint64_t strided_block_bytes_;
  std::mutex mutex_;
  std::size_t transfer_ = 0;  // the one after that of grid_
  std::uint64_t block_ = 0;
  std::unique_ptr<BlockGrid> grid_;
};

}  // namespace reshard
