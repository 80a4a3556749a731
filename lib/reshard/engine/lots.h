#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/wire.h"
#include "reshard/engine/units.h"

namespace reshard {

// Ranks are never equally fast, and all of them wait for the slowest. So a rank does the most of its share itself, and
// the last part of it lies ready in lots: a rank that has little left to do gets some of another one's.

/// A program dealt out to ranks.
struct Shares {
  std::vector<std::vector<Part>> own;    // of each share, what its rank does first; in the program's order
  std::vector<std::vector<Part>> lots;   // what may go to another rank
  std::vector<std::size_t> first_lots;   // of each share the index of its first lot, and the number of all lots
  std::vector<std::uint64_t> own_bytes;  // moved for each `own`
  std::vector<std::uint64_t> lot_bytes;  // likewise

  /// The parts that nobody but one rank has at a time: all `own`, and then all `lots`.
  std::vector<std::vector<Part>> separate_parts() const;
};

/// Deals units out: about the same cost to each of `count` shares, and the last quarter of each in at most 32 lots.
/// \param missing  the units to deal out, ascending.
/// \param with_lots  else there are none.
Shares deal_shares(const Units& units, const std::vector<std::uint32_t>& missing, std::uint32_t count, bool with_lots);

/// The lots that one rank has, and what it tells the others of them. Threads of the run take lots, while another thread
/// tells and hears. Thread-safe.
class Lots {
 public:
  /// \param exchanged  tell and hear will be called, by all ranks equally often. Else a rank has its own lots only.
  Lots(std::uint32_t rank, bool exchanged) : rank_(rank), exchanged_(exchanged) {}

  // For the threads of the run.

  /// This rank runs its share of `shares`, of which `own` is not used; those of all ranks are equal.
  void begin(Shares shares);
  /// The next lot of this rank, which it keeps now; nothing if it has none.
  const std::vector<Part>* take();
  /// Waits a moment for further lots. \returns false when none will come any more.
  bool wait();

  // Between the ranks.

  /// What this rank has, for the others.
  /// \param moved_bytes  by this rank, of those that Shares counts.
  /// \param seconds  that it took for them.
  std::string tell(std::uint64_t moved_bytes, double seconds);
  /// Takes what others gave to this rank, and gives what another one needs, which the next `tell` says.
  /// \param told  by each rank.
  /// \returns whether some rank waits for lots that are on their way.
  bool hear(const std::vector<std::string>& told);

 private:
  struct Gift {
    std::uint32_t to = 0;
    std::size_t lot = 0;
  };
  struct Told {
    bool has_begun = false;
    std::uint64_t left_bytes = 0;
    std::uint64_t lots = 0;
    double bytes_per_second = 0;
    std::vector<Gift> gifts;

    double left_seconds() const { return static_cast<double>(left_bytes) / bytes_per_second; }
  };

  static Told read(const std::string& text);
  void give(const Told& from, const Told& to, std::uint32_t to_rank);

  std::uint32_t rank_;
  bool exchanged_;
  std::mutex mutex_;
  bool has_begun_ = false;
  Shares shares_;
  std::condition_variable changed_;
  std::deque<std::size_t> own_;
  std::uint64_t planned_bytes_ = 0;  // of all that is this rank's to do, done or not
  std::vector<Gift> gifts_;          // not told yet
  bool closed_ = false;              // no lots will come
};

}  // namespace reshard
