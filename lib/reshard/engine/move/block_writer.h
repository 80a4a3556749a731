#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "reshard/engine/move/group.h"
#include "reshard/engine/move/run_state.h"

namespace reshard {

/// Writes the blocks of one thread to the target's files.
class BlockWriter {
 public:
  BlockWriter(RunState& shared, Buffers& buffers) : shared_(shared), buffers_(buffers) {}

  /// File offset that corresponds to byte 0 of the block, if a group is written from it directly.
  std::optional<std::uint64_t> place_written_to(std::span<const Group> groups) const;

  /// Writes the block's bytes of each group; in one call if they form one range of the file.
  /// \returns the bytes written.
  /// \throws Error kNoSpace or kIo.
  std::uint64_t store(std::span<const Group> groups, std::span<const std::byte> block);

  /// Begins to join blocks whose bytes interleave in the files: until write_joined, `store` collects the bytes of stored
  /// tensors in which the blocks together form one range.
  /// \param blocks  the groups of each block.
  /// \param max_bytes  memory for what is collected. Ranges that do not fit are not joined.
  void join(std::span<const std::vector<Group>> blocks, std::uint64_t max_bytes);
  bool is_joining() const { return !joined_.empty(); }
  /// Writes what was collected.
  /// \throws Error kNoSpace or kIo.
  void write_joined();

  /// Returns what was written since the last call, for a UnitLedger.
  UnitReport take_noted() { return std::exchange(noted_, {}); }

  /// Lets the file system copy a group that is one run from a range of a file. \returns false if this is impossible or
  /// slower.
  bool copy(const Group& group, const Source& source, std::uint64_t source_offset_bytes);

 private:
  std::shared_ptr<Sink> sink_of(const StoredTensor& stored);
  bool is_staged(const Group& group) const;
  std::uint64_t place_of(const Group& group) const;
  void note_written(std::uint32_t stored, std::uint32_t crc);
  /// A range of a stored tensor, and its bytes in Buffers::joined.
  struct Joined {
    Group range;
    std::byte* bytes = nullptr;
  };

  std::vector<Group> collect(std::span<const Group> groups, std::span<const std::byte> block);
  void add_copy(const Runs& runs, std::span<const std::byte> block, std::byte* to, std::uint64_t to_origin_bytes);
  void write_together(std::span<const Group> groups, std::span<const std::byte> block);
  void write(const Group& group, std::uint64_t begin_bytes, std::span<const std::byte> bytes);
  void write_apart(const Group& group, const std::byte* staged);
  void write_gathered(const Group& group, std::uint64_t begin_bytes);

  RunState& shared_;
  Buffers& buffers_;
  std::vector<std::span<const std::byte>> gathered_;
  std::map<std::uint32_t, Joined> joined_;  // by stored tensor
  std::deque<Runs> swapped_;                // of copies_
  std::vector<RunsCopy> copies_;
  UnitReport noted_;
};

}  // namespace reshard
