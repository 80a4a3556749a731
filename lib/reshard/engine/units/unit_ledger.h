#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/engine/units/share_report.h"
#include "reshard/engine/units/units.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// Result of one unit of a program: the content of a ShareReport for a few tensors.
struct UnitReport {
  struct Crc {
    std::uint32_t stored = 0;
    std::uint32_t contribution = 0;

    static auto fields(auto& self) { return std::tie(self.stored, self.contribution); }
  };
  struct Leaf {
    std::uint32_t target = 0;  // logical tensor
    std::uint64_t first_elem = 0;
    Sha256Digest digest{};

    static auto fields(auto& self) { return std::tie(self.target, self.first_elem, self.digest); }
  };
  std::uint32_t unit = 0;
  std::uint64_t written_bytes = 0;
  std::vector<Crc> crcs;             // may list a tensor several times
  std::vector<std::uint32_t> files;  // written to, ascending
  std::vector<Leaf> leaves;
  std::vector<std::size_t> inexact;  // transfers with Findings::inexact
  std::vector<LostIn> lost;
  std::vector<Divergence> divergent;

  static auto fields(auto& self) {
    return std::tie(self.unit, self.written_bytes, self.crcs, self.files, self.leaves, self.inexact, self.lost,
                    self.divergent);
  }
};

/// Adds the result of a unit to a report that has room for all tensors of `target`.
/// \throws Error kBadInput if the unit belongs to another target.
void merge(ShareReport& into, const UnitReport& unit, const TargetMap& target);

/// Detects when all blocks of a unit are done. Thread-safe.
class UnitLedger {
 public:
  /// \param done  called with each completed unit, by the thread that processed its last block.
  UnitLedger(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
             std::function<void(UnitReport)> done);
  /// Adds parts of units that are not known yet.
  void expect(const std::vector<Part>& parts);

  /// Adds the result of a block; `of_block.unit` is the block's unit.
  /// \param block_bytes  of the tensor as it is read.
  void add(const UnitReport& of_block, std::uint64_t block_bytes);

 private:
  struct Open {
    std::uint64_t left_bytes = 0;
    UnitReport report;
  };

  ProgramMaps maps_;
  const Program& program_;
  std::function<void(UnitReport)> done_;
  std::mutex mutex_;
  std::map<std::uint32_t, Open> open_;
};

}  // namespace reshard
