#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "reshard/engine/move/group.h"
#include "reshard/engine/units/blocks.h"
#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// Block size if memory is plentiful: fits in the CPU cache, and is worth a system call even if written to many files.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
/// Block size for strided reads. A block of rows of a column-major matrix is many short ranges, which get longer with
/// more rows.
inline constexpr std::uint64_t kStridedBlockBytes = std::uint64_t{32} << 20;

/// Maximum sizes of blocks.
struct BlockSizes {
  std::uint64_t bytes = kBlockBytes;
  std::uint64_t strided_bytes = kStridedBlockBytes;  // if a tensor is stored in another dim order
  /// Limit for kPlainBuffers blocks of a computed tensor plus the blocks of its inputs.
  std::uint64_t computed_bytes = UINT64_MAX;
  /// Limit for the memory of blocks that are written together: kPlainBuffers blocks of the largest, and all that they
  /// write.
  std::uint64_t joined_bytes = 3 * kStridedBlockBytes;
};

/// Number of buffers per thread: the block, up to two for staging, one for a replica or the result of a cast.
inline constexpr std::uint64_t kPlainBuffers = 4;

/// Bytes of the inputs that are read to compute `box`, recursively; without inputs that are read whole.
std::uint64_t input_bytes(const SourceMap& map, const Reading& reading, const Box& box);

/// Lower limit to which blocks of a computed tensor shrink to fit in memory.
inline constexpr std::uint64_t kLeastComputedBytes = std::uint64_t{16} << 10;

/// Bytes of one thread's buffers for a tensor that is computed in blocks of up to `block_bytes`.
std::uint64_t computing_bytes(const SourceMap& map, const Reading& reading, std::uint64_t block_bytes);

/// The blocks of parts of a program. Each worker processes a stretch of about equal size in order, so it reads each
/// file front to back, and workers mostly write to different files, which file systems do in parallel. A worker that is
/// done takes half of the largest remaining stretch. Thread-safe.
class BlockQueue {
 public:
  struct Item {
    std::size_t transfer;
    std::uint64_t block;  // index in the part
    Block at;
    std::uint32_t unit;
  };

  /// Blocks in the order of the target's files. With `leaves`, each block is a leaf of the output tensor, whatever the
  /// sizes. Borrows the program and its maps.
  BlockQueue(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts, const BlockSizes& sizes,
             unsigned workers, bool leaves = false);

  /// Replaces `items` by the next block, or by the next block of each of several transfers that interleave, which have
  /// the same unit.
  /// \returns false if no blocks are left.
  /// \throws Error kUnsupported if even the smallest block of whole bytes of a tensor is too large.
  bool next(unsigned worker, std::vector<Item>& items);
  /// Adds parts for a worker that has no blocks left.
  void add(unsigned worker, const std::vector<Part>& parts);

 private:
  /// A position: a block of a part, and of those joined to it. The end of a part is represented as block 0 of the next
  /// one that is not joined.
  struct Place {
    std::size_t part = 0;
    std::uint64_t block = 0;
    bool operator==(const Place&) const = default;
  };
  struct Stretch {
    Place begin;
    Place end;
    std::vector<BlockGrid> grids;  // of begin.part and those joined to it
    std::size_t grids_of = SIZE_MAX;
  };

  std::uint64_t block_bytes_of(std::size_t part) const;
  const Transfer& transfer_of(std::size_t part) const { return program_.transfers[parts_[part].transfer]; }
  Box box_of(std::size_t part) const;
  Dims order_of(std::size_t part) const;
  bool may_join(std::size_t part) const;
  void join(std::size_t first, std::size_t end);
  bool fit_together(std::size_t first, std::size_t end, std::uint64_t pieces, std::uint64_t together) const;
  std::size_t end_of(std::size_t part) const;
  std::vector<BlockGrid> grids_of(std::size_t first, std::size_t end) const;
  void validate_size(std::size_t part, const BlockGrid& grid) const;
  Place place_at(std::uint64_t bytes) const;
  std::uint64_t bytes_before(const Place& place) const;
  void append(const std::vector<Part>& parts);
  bool steal(Stretch& stretch);

  ProgramMaps maps_;
  const Program& program_;
  BlockSizes sizes_;
  bool leaves_;
  bool has_views_;  // whether a source has tensors in another shape or order than the file
  std::vector<Part> parts_;
  struct Joined {
    bool follows = false;           // whether its blocks are given with those of the part before it
    std::uint64_t block_bytes = 0;  // the size of its blocks, also for the first part of several; 0: block_bytes_of
  };
  std::vector<Joined> joined_;               // by part
  std::vector<std::uint64_t> bytes_before_;  // total size before each part; then the total
  std::mutex mutex_;
  std::vector<Stretch> stretches_;  // of each worker
};

}  // namespace reshard
