#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/engine/units/units.h"

namespace reshard {

// Ranks are never equally fast, and all of them wait for the slowest. So each rank does the most of its share itself, and
// the rest is dealt in lots: a rank that has little left to do gets some of another rank's, which hands them over.

/// Units of a share that may be handed over to another rank, all of them together.
struct Lot {
  std::uint32_t share = 0;  // whose it is at first
  std::uint64_t bytes = 0;  // of the tensors as they are read
  std::vector<Part> parts;
};

/// A program dealt out to ranks.
struct Shares {
  std::vector<std::vector<Part>> own;  // of each share, what its rank does itself; in the program's order
  std::vector<Lot> lots;               // those of the first share, in the program's order, then of the second, ...

  /// The parts that are done by one rank each, whichever: all `own`, and then all lots'.
  std::vector<std::vector<Part>> writers() const;
};

/// Deals units out: about the same cost to each of `count` shares, and of each share the last quarter of its units in
/// lots.
/// \param missing  the units to deal out, ascending.
/// \param most_lots  of each share; 0: none.
Shares deal_shares(const ProgramMaps& maps, const Program& program, const Units& units,
                   const std::vector<std::uint32_t>& missing, std::uint32_t count, std::size_t most_lots);

/// The lots that one rank has, and what it tells the others of them. Threads of the run take lots, while another thread
/// tells and hears. Thread-safe.
class Lots {
 public:
  explicit Lots(std::uint32_t rank) : rank_(rank) {}

  // For the threads of the run.

  /// This rank begins its share.
  /// \param own_bytes  of the tensors of what it does itself.
  /// \param lots  of all shares, the same for all ranks.
  void begin(std::uint64_t own_bytes, std::vector<Lot> lots);
  /// The next lot that this rank has, which it keeps now; null if it has none.
  const Lot* take();
  /// So many bytes of tensors are done, of what this rank does itself and of lots.
  void did(std::uint64_t bytes);
  /// Waits a moment for further lots. \returns false when none will come any more.
  bool wait(std::chrono::milliseconds moment = std::chrono::milliseconds(5));

  // Between the ranks: all tell, all hear what all have told, again and again.

  /// What this rank has, for the others.
  /// \param seconds  of a clock of this rank.
  std::string tell(double seconds);
  /// Takes the lots that are handed over to this rank, and hands over some to a rank that needs them, which the next
  /// `tell` says.
  /// \param told  by each rank.
  /// \returns whether lots are on their way.
  /// \throws Error kBadInput for lots or ranks that do not exist.
  bool hear(const std::vector<std::string>& told);

 private:
  struct Handover {
    std::uint32_t to_rank = 0;
    std::size_t lot = 0;  // index into lots_

    static auto fields(auto& self) { return std::tie(self.to_rank, self.lot); }
  };
  struct Told {
    bool has_begun = false;
    std::uint64_t left_bytes = 0;
    double bytes_per_second = 0;  // 0: not known yet
    std::uint64_t lots = 0;
    std::uint64_t last_lot_bytes = 0;  // what it hands over first
    std::vector<Handover> handovers;

    static auto fields(auto& self) {
      return std::tie(self.has_begun, self.left_bytes, self.bytes_per_second, self.lots, self.last_lot_bytes,
                      self.handovers);
    }
    double left_seconds() const { return static_cast<double>(left_bytes) / bytes_per_second; }
    /// Whether lots that a rank hands over first are done sooner by `other`.
    bool gains_from(const Told& other) const;
  };
  struct Match {
    std::uint32_t giver = 0;
    std::uint32_t taker = 0;
  };

  static std::vector<Match> matches(const std::vector<Told>& ranks);
  void hand_over(const Told& from, const Told& to, std::uint32_t to_rank);

  std::uint32_t rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_begun_ = false;
  bool is_closed_ = false;  // no lots will come
  std::vector<Lot> lots_;   // of all shares
  std::deque<std::size_t> held_;
  std::uint64_t left_bytes_ = 0;  // of all that is this rank's to do
  std::uint64_t done_bytes_ = 0;
  double working_seconds_ = 0;       // in which it had something to do
  double told_seconds_ = 0;          // when it told last
  bool had_work_ = false;            // then
  std::vector<Handover> handovers_;  // not told yet
};

}  // namespace reshard
