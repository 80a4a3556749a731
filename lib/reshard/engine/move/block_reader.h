#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/engine/move/group.h"
#include "reshard/engine/move/run_state.h"
#include "reshard/engine/move/windows.h"
#include "reshard/tensor/cast/drift.h"

namespace reshard {

/// Brings the blocks of one thread: views of mapped files where that is possible, else copies.
class BlockReader {
 public:
  BlockReader(SharedRun& shared, Buffers& buffers, std::uint64_t max_window_bytes)
      : shared_(shared),
        buffers_(buffers),
        windows_(max_window_bytes, shared.options.tuning.least_view_bytes,
                 std::min(kMostWindows, open_files()) / shared.threads + 1) {}

  /// What was returned for the block before may go away.
  void start_block() { windows_.start_block(); }

  /// Block `box` of the tensor, C-ordered, with its replicas compared to it: a view of a file, or `buffer`. From there
  /// it is written to `written_to_bytes` of a file, if it is.
  /// \throws Error kBadInput where a check finds other bytes; kIo.
  std::span<const std::byte> read(const TensorMap& map, FilePool<Source>& files, const Reading& reading,
                                  const LogicalTensor& tensor, const Box& box, Buffer& buffer,
                                  std::optional<std::uint64_t> written_to_bytes = {});

  /// The same block in one part, or parts of at least Tuning::least_part_bytes, in order, where they lie in their
  /// files. `groups` are those of its reads. \returns false where that is not possible.
  bool read_parts(const TensorMap& map, FilePool<Source>& files, std::span<const Group> groups,
                  std::vector<std::span<const std::byte>>& parts);

  /// What was seen of the block's views was the files'.
  /// \throws Error kIo.
  void validate_whole() const { windows_.validate_whole(); }

  /// Replicas found to differ since the last call, for a UnitLedger.
  std::vector<Divergence> take_noted() { return std::exchange(noted_, {}); }

 private:
  std::span<const std::byte> view(const TensorMap& map, FilePool<Source>& files, const Group& group,
                                  std::size_t groups);
  void load_all(const TensorMap& map, FilePool<Source>& files, std::span<const Group> groups,
                std::span<std::byte> block);
  void load(const TensorMap& map, FilePool<Source>& files, const Group& group, std::span<std::byte> block);
  void load_apart(const Source& file, std::uint64_t offset_bytes, const Runs& runs, std::span<std::byte> block);
  void read_ranges(const Source& file, std::uint64_t offset_bytes, const Runs& reads);
  void compare(const TensorMap& map, FilePool<Source>& files, const Reading& reading, const Group& group,
               std::size_t groups, const LogicalTensor& tensor, const Box& box, std::span<const std::byte> block);
  void differ(const TensorMap& map, FilePool<Source>& files, const Reading& reading, std::uint32_t stored,
              const LogicalTensor& tensor, const Dims& index, std::string_view values);
  ReplicaDistance distance(const TensorMap& map, FilePool<Source>& files, const Reading& reading, std::uint32_t stored,
                           const LogicalTensor& tensor, Dims& first);

  SharedRun& shared_;
  Buffers& buffers_;
  Windows windows_;
  std::vector<RunsCopy> copies_;
  std::vector<Divergence> noted_;
};

/// The index of element `elem` of a box, in C order, in the box's tensor.
Dims index_in(const Box& box, std::uint64_t elem);

}  // namespace reshard
