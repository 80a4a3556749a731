#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "reshard/plan/job/program.h"

namespace reshard {

/// The rows of one transfer's tensor that belong to a unit: whole rows of one dim.
struct Part {
  std::size_t transfer = 0;
  std::uint64_t begin_row = 0;
  std::uint64_t end_row = 0;
  std::uint32_t unit = 0;
  std::uint32_t dim = 0;  // the first dim in Transfer::order, or in C order with whole_rows, whose size is not 1; or 0

  /// \param tensor  of the transfer.
  Box box(const LogicalTensor& tensor) const;
};

/// Size of `parts` in the tensors' input dtypes.
std::uint64_t bytes_of(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts);

/// The whole program as one unit.
std::vector<Part> whole_program(const ProgramMaps& maps, const Program& program);

/// A program divided into units of about equal cost, which do not overlap. The division depends only on the program and
/// the number of units, not on threads, memory or blocks: all processes that planned the same program agree on it, and
/// so does a later run.
class Units {
 public:
  /// \param whole_leaves  keeps each leaf of a tensor's digest (leaf_digests.h) in one unit.
  /// \param snap  fraction of a unit's cost by which a cut may move to coincide with the end of target files.
  /// Takes time proportional to the program's pieces.
  Units(const ProgramMaps& maps, const Program& program, std::uint32_t count, bool whole_leaves, double snap = 0.02);

  std::uint32_t count() const { return static_cast<std::uint32_t>(cuts_.size() - 1); }
  bool whole_leaves() const { return whole_leaves_; }
  /// Bytes read and written for a unit; 0 if it is empty.
  std::uint64_t cost(std::uint32_t unit) const { return cuts_[unit + 1].cost - cuts_[unit].cost; }
  /// Distributes units over `count` shares of about equal cost. A share ends at the end of target files if that changes
  /// its cost by at most 2 %.
  /// \param units  ascending.
  /// \returns for each share the index into `units` of its first unit, then units.size().
  std::vector<std::size_t> deal(const std::vector<std::uint32_t>& units, std::uint32_t count) const;
  /// Appends the parts of a unit, in the program's order.
  void add_parts(std::uint32_t unit, std::vector<Part>& parts) const;

 private:
  /// A position between two rows. Row 0 represents the end of the preceding transfer.
  struct Cut {
    std::size_t transfer = 0;
    std::uint64_t row = 0;
    std::uint64_t cost = 0;  // total cost before the cut
    bool at_file_end = false;
  };

  std::vector<Part> whole_;  // by transfer
  std::vector<Cut> cuts_;    // before each unit, and after the last one
  bool whole_leaves_;
};

/// Divides a sequence of items with these costs among `size` ranks, about equally. \returns the range [first, last) of
/// `rank`.
std::pair<std::size_t, std::size_t> part_of(const std::vector<std::uint64_t>& costs, std::uint32_t rank,
                                            std::uint32_t size);

}  // namespace reshard
