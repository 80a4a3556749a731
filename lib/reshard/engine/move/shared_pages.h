#pragma once

#include <cstdint>
#include <vector>

#include "reshard/engine/move/run_options.h"
#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

struct PageRange {
  std::uint64_t first_page = 0;
  std::uint64_t last_page = 0;
};

/// The pages of the target's files to which more than one share of a run writes. All ranks compute the same pages,
/// since they divide the same program into the same shares.
class SharedPages {
 public:
  /// No pages.
  SharedPages() = default;
  /// \param shares  the parts of each share, in the program's order. Shares do not overlap.
  /// Takes time proportional to the program's pieces.
  SharedPages(const ProgramMaps& maps, const Program& program, const std::vector<std::vector<Part>>& shares,
              std::uint64_t page_bytes);

  std::uint64_t page_bytes() const { return page_bytes_; }
  /// Whether the page that contains this byte of target file `file` is shared.
  bool contains(std::uint32_t file, std::uint64_t offset_bytes) const;
  bool empty() const;
  /// Total size of all shared pages.
  std::uint64_t size_bytes() const;

 private:
  std::uint64_t page_bytes_ = kLargestPageBytes;
  std::vector<std::vector<PageRange>> pages_;  // by file; ascending and disjoint
};

}  // namespace reshard
