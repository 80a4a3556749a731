#pragma once

#include <cstdint>
#include <vector>

#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// The largest page of a file that machines keep in memory: 64 KiB, of some kernels for Arm and POWER. Smaller ones
/// divide it.
inline constexpr std::uint64_t kLargestPageBytes = std::uint64_t{64} << 10;

struct PageRange {
  std::uint64_t first_page = 0;
  std::uint64_t last_page = 0;
};

/// The pages of the target's files in which more than one share of a run has bytes. All ranks of a run find the same
/// ones, since they cut the same program into the same shares.
class SharedPages {
 public:
  /// None.
  SharedPages() = default;
  /// \param shares  the parts of each share, each list in the program's order. No element is in two of them.
  /// Takes time in proportion to the program's pieces.
  SharedPages(const ProgramMaps& maps, const Program& program, const std::vector<std::vector<Part>>& shares,
              std::uint64_t page_bytes);

  std::uint64_t page_bytes() const { return page_bytes_; }
  /// Whether the page that holds this byte of target file `file` is one.
  bool contains(std::uint32_t file, std::uint64_t offset_bytes) const;
  bool empty() const;
  /// Of all of them together.
  std::uint64_t size_bytes() const;

 private:
  std::uint64_t page_bytes_ = kLargestPageBytes;
  std::vector<std::vector<PageRange>> pages_;  // of each file, ascending; ranges do not meet
};

}  // namespace reshard
