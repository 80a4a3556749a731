#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/plan/program.h"

namespace reshard {

/// One of `count` shares of a program, of about equal cost; they end where files of the target do, if that changes the
/// cost of a share by at most a fiftieth. Together they are the program, and no element is in two of
/// them. What is in a share depends on the program alone, not on threads, memory or blocks, so that processes that
/// planned the same program agree on it. The default is the whole program.
struct Share {
  std::uint32_t index = 0;  // less than count
  std::uint32_t count = 1;
  bool whole_leaves = false;  // no leaf of a tensor's digest (leaf_digests.h) is in two shares

  friend bool operator==(const Share&, const Share&) = default;
};

/// What of each transfer's tensor is in a share: one box, of whole rows. Most transfers are in one share; those at its
/// two ends may be cut between rows of their outermost dim that has more than one.
class ShareBoxes {
 public:
  /// \throws Error kUsage for a share that does not exist.
  /// Takes time in proportion to the program's pieces; none for the whole program.
  ShareBoxes(const ProgramMaps& maps, const Program& program, const Share& share);

  /// Transfers [begin, end) are in the share, the first and the last of them maybe in part.
  std::size_t begin_transfer() const { return begin_.transfer; }
  std::size_t end_transfer() const { return end_.row > 0 ? end_.transfer + 1 : end_.transfer; }

  /// The part of `tensor`, that of transfer `transfer` of the share, which is in it: may be empty, if the tensor is
  /// huge in proportion to its rows.
  Box box(std::size_t transfer, const LogicalTensor& tensor) const;

 private:
  /// A place between two rows; row 0 and not the count of rows of the transfer before.
  struct Cut {
    std::size_t transfer = 0;
    std::uint64_t row = 0;
  };

  Cut begin_;
  Cut end_;
};

}  // namespace reshard
