#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "reshard/plan/job/program.h"

namespace reshard {

/// What of one transfer's tensor is in a unit: whole rows of one dim.
struct Part {
  std::size_t transfer = 0;
  std::uint64_t begin_row = 0;
  std::uint64_t end_row = 0;
  std::uint32_t unit = 0;
  std::uint32_t dim = 0;  // the first dim in Transfer::order of several rows; 0 if there is none

  /// \param tensor  that of the transfer.
  Box box(const LogicalTensor& tensor) const;
};

/// The bytes of the tensors, as they are read, that are in `parts`.
std::uint64_t bytes_of(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts);

/// All of a program, as one unit.
std::vector<Part> whole_program(const ProgramMaps& maps, const Program& program);

/// A program cut into units of about equal cost. Together they are the program, and no element is in two of them. What
/// is in a unit depends on the program and the number of units alone, not on threads, memory or blocks, so that all
/// processes that planned the same program agree on it, and those of a later run.
class Units {
 public:
  /// \param whole_leaves  no leaf of a tensor's digest (leaf_digests.h) is in two units.
  /// \param snap  of a unit's cost, the part by which it may be moved to end where files of the target do.
  /// Takes time in proportion to the program's pieces.
  Units(const ProgramMaps& maps, const Program& program, std::uint32_t count, bool whole_leaves, double snap = 0.02);

  std::uint32_t count() const { return static_cast<std::uint32_t>(cuts_.size() - 1); }
  bool whole_leaves() const { return whole_leaves_; }
  /// Bytes read and written for it; 0 for one that is empty.
  std::uint64_t cost(std::uint32_t unit) const { return cuts_[unit + 1].cost - cuts_[unit].cost; }
  /// Deals units out to `count` shares of about equal cost. A share ends where files of the target do, if that changes
  /// it by at most 2 %.
  /// \param units  ascending.
  /// \returns for each share the index into `units` of its first one, and after the last share their number.
  std::vector<std::size_t> deal(const std::vector<std::uint32_t>& units, std::uint32_t count) const;
  /// Adds the parts of a unit, in the program's order.
  void add_parts(std::uint32_t unit, std::vector<Part>& parts) const;

 private:
  /// A place between two rows; row 0 and not the count of rows of the transfer before.
  struct Cut {
    std::size_t transfer = 0;
    std::uint64_t row = 0;
    std::uint64_t cost = 0;  // of what lies before it
    bool at_file_end = false;
  };

  std::vector<Part> whole_;  // of each transfer
  std::vector<Cut> cuts_;    // before each unit, and after the last one
  bool whole_leaves_;
};

/// Of items in a row that cost as much as `costs` says, those that `rank` of `size` takes: [first, last), about as much
/// as the others.
std::pair<std::size_t, std::size_t> part_of(const std::vector<std::uint64_t>& costs, std::uint32_t rank,
                                            std::uint32_t size);

}  // namespace reshard
