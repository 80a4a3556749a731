#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/engine/move/group.h"
#include "reshard/engine/units/blocks.h"
#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// The most that a block has where memory is no concern: it stays in the cache, and is worth a system call even when it
/// is written to many files.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
/// A block of rows of a column-major matrix is many short ranges, which are longer the more rows it has.
inline constexpr std::uint64_t kStridedBlockBytes = std::uint64_t{32} << 20;

/// How large blocks are.
struct BlockSizes {
  std::uint64_t bytes = kBlockBytes;                 // at most
  std::uint64_t strided_bytes = kStridedBlockBytes;  // where a tensor is read from one in another order
  /// At most, kPlainBuffers blocks of a tensor that is computed together with the blocks of its inputs.
  std::uint64_t computed_bytes = UINT64_MAX;
};

/// Buffers of one thread: the block, up to two for staging, one for a replica or after a cast.
inline constexpr std::uint64_t kPlainBuffers = 4;

/// The bytes of the inputs that are read, by block, for box `box` of a tensor that is computed, and of theirs.
std::uint64_t input_bytes(const SourceMap& map, const Reading& reading, const Box& box);

/// Blocks of a tensor that is computed are made no smaller than this to fit in memory.
inline constexpr std::uint64_t kLeastComputedBytes = std::uint64_t{16} << 10;

/// The bytes of one thread's buffers for a tensor that is computed in blocks of up to `block_bytes`.
std::uint64_t computing_bytes(const SourceMap& map, const Reading& reading, std::uint64_t block_bytes);

/// The blocks of parts of a program. Each worker has a stretch, about as many bytes as the others', and
/// walks it in order: so workers read each a file from front to back, and mostly write to different files, which a file
/// system does at the same time. Who is done takes half of what the slowest still has to do. Thread-safe.
class BlockQueue {
 public:
  struct Item {
    std::size_t transfer;
    std::uint64_t block;  // index in the part
    Block at;
    std::uint32_t unit;
  };

  /// Blocks in the order of the target's files. With `leaves`, each block is a leaf of the tensor as it is written,
  /// whatever the sizes. The maps are the program's; they and it are borrowed.
  BlockQueue(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts, const BlockSizes& sizes,
             unsigned workers, bool leaves = false);

  /// \returns false when there is nothing left.
  /// \throws Error kUnsupported if even the smallest block of whole bytes of a tensor is too large.
  bool next(unsigned worker, Item& item);
  /// Adds parts for a worker that has nothing left.
  void add(unsigned worker, const std::vector<Part>& parts);

 private:
  /// Blocks from one place up to another; each place is a part and a block of it. A place has as its block 0 and not
  /// the count of the part before.
  struct Place {
    std::size_t part = 0;
    std::uint64_t block = 0;
    bool operator==(const Place&) const = default;
  };
  struct Stretch {
    Place begin;
    Place end;
    std::unique_ptr<BlockGrid> grid;  // of begin.part
    std::size_t grid_of = SIZE_MAX;
    Dims grid_begin;  // index in the tensor
  };

  std::uint64_t block_bytes_of(const Transfer& transfer) const;
  const Transfer& transfer_of(std::size_t part) const { return program_.transfers[parts_[part].transfer]; }
  Box box_of(std::size_t part) const;
  Dims order_of(const Transfer& transfer) const { return leaves_ ? Dims() : transfer.order(maps_); }
  BlockGrid grid_of(std::size_t part) const;
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
  std::vector<std::uint64_t> bytes_before_;  // of the parts before each one; the last is the total
  std::mutex mutex_;
  std::vector<Stretch> stretches_;  // of each worker
};

}  // namespace reshard
