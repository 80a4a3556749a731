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

// Ranks differ in speed, and all of them wait for the slowest. So each rank processes most of its share itself, and the
// rest is divided into lots: a rank that has little left to do gets lots from another rank.

/// Units of a share that may be handed over together to another rank.
struct Lot {
  std::uint32_t share = 0;  // share that it belongs to initially
  std::uint64_t bytes = 0;  // size in the tensors' input dtypes
  std::vector<Part> parts;
};

/// A program distributed over ranks.
struct Shares {
  std::vector<std::vector<Part>> own;  // by share: the parts that its own rank processes, in the program's order
  std::vector<Lot> lots;               // lots of the first share, in the program's order, then of the second, ...

  /// Returns the sets of parts that are each written by one rank: all `own`, then all lots.
  std::vector<std::vector<Part>> writers() const;
};

/// Distributes units over `count` shares of about equal cost. The last quarter of each share's units is divided into
/// lots.
/// \param missing  the units to distribute, ascending.
/// \param most_lots  maximum number per share; 0: none.
Shares deal_shares(const ProgramMaps& maps, const Program& program, const Units& units,
                   const std::vector<std::uint32_t>& missing, std::uint32_t count, std::size_t most_lots);

/// The lots of one rank, and its messages to the others about them. Threads of the run take lots, while another thread
/// exchanges messages. Thread-safe.
class Lots {
 public:
  explicit Lots(std::uint32_t rank) : rank_(rank) {}

  // For the threads of the run.

  /// Begins this rank's share.
  /// \param own_bytes  size of the tensors that this rank processes itself.
  /// \param lots  of all shares, the same on all ranks.
  void begin(std::uint64_t own_bytes, std::vector<Lot> lots);
  /// Takes this rank's next lot, which can then no longer be handed over. Returns null if the rank has no lots.
  const Lot* take();
  /// Records that `bytes` bytes of tensors are done, in this rank's own parts or in lots.
  void did(std::uint64_t bytes);
  /// Waits briefly for further lots. \returns false if there will be no more.
  bool wait(std::chrono::milliseconds moment = std::chrono::milliseconds(5));

  // Messages between ranks, exchanged repeatedly: each calls tell, and then hear with all messages.

  /// Returns this rank's state for the others.
  /// \param seconds  of a clock of this rank.
  std::string tell(double seconds);
  /// Accepts lots handed over to this rank, and hands over lots to a rank that needs them, which the next `tell`
  /// reports.
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
  bool is_closed_ = false;  // there will be no more lots
  std::vector<Lot> lots_;   // all shares' lots
  std::deque<std::size_t> held_;
  std::uint64_t left_bytes_ = 0;  // size of all work left to this rank
  std::uint64_t done_bytes_ = 0;
  double working_seconds_ = 0;       // time during which it had work
  double told_seconds_ = 0;          // time of the last tell
  bool had_work_ = false;            // whether it had work then
  std::vector<Handover> handovers_;  // not reported yet
};

}  // namespace reshard
