#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/peers.h"

namespace reshard {

/// An error that all ranks know of: each of them throws this one.
class AgreedError : public Error {
 public:
  explicit AgreedError(Error error) : Error(std::move(error)) {}
};

struct Beat;

/// What ranks tell each other while they take a step, at each beat.
struct Talk {
  std::function<std::string()> tell;
  /// \param told  by each rank.  \returns whether the next beat should come soon.
  std::function<bool(const std::vector<std::string>& told)> hear;
};

/// Steps that processes take together: each does its own work, and all go on, or none does. A process may also be alone.
class Together {
 public:
  /// Alone.
  Together() = default;
  /// With others. Ranks are borrowed. All of them make one of these at the same time, since it tells the others where
  /// this process runs.
  /// \param host  the name of this machine.
  /// \throws RankLost.
  Together(Peers& ranks, const std::string& host);

  std::uint32_t rank() const { return ranks_ ? ranks_->rank() : 0; }
  std::uint32_t size() const { return ranks_ ? ranks_->size() : 1; }
  bool leads() const { return rank() == 0; }
  /// How many ranks run on this machine.
  std::uint32_t local_size() const;
  /// "rank 3 on node17".
  std::string process(std::uint32_t rank) const;

  /// Options as this rank was given them, by name, with their values; empty for a switch. Only errors take notice: they
  /// say which differ between ranks.
  void set_given(std::map<std::string, std::string> given) { given_ = std::move(given); }
  /// ": --tp 2 in place of --tp 4" of what `rank` was given and rank 0; empty if that does not differ. All ranks call it
  /// at the same time.
  /// \throws RankLost.
  std::string other_options(std::uint32_t rank) const;

  /// Does `work`, on another thread where there are others, and returns when all ranks have done theirs. Meanwhile this
  /// thread keeps in touch: what all have moved goes into Progress::others_bytes, Progress::stop of one stops all, and
  /// so does a failure.
  /// \param name  what is done, the same on all ranks: "plan".
  /// \param clean_up  called, once and on another thread, where a signal stopped this process: at once, since whoever
  /// sent it may kill the process before the others have answered.
  /// \param talk  called by this thread; not if this process is alone.
  /// \throws Error what `work` throws, alone; else AgreedError, the same on all ranks: that of the lowest rank, and a
  /// signal before all others; RankLost.
  void step(const std::string& name, Progress& progress, const std::function<void()>& work,
            const std::function<void()>& clean_up = {}, const Talk& talk = {});

  /// Tells the others that this process failed outside of a step: wherever they are, they fail, too.
  /// \throws Error what it was, alone; else AgreedError, see step; RankLost.
  [[noreturn]] void fail(const std::exception_ptr& why);

  /// What each rank gave, by rank.
  /// \throws AgreedError where another rank failed before it came here; RankLost.
  std::vector<std::string> gather(const std::string& name, std::string mine);
  /// What rank 0 gave.
  std::string from_leader(const std::string& name, std::string mine);

 private:
  std::vector<Beat> meet(const std::function<Beat()>& mine, const std::function<void(const std::vector<Beat>&)>& heard,
                         const std::function<std::exception_ptr()>& failure);
  void validate_same_step(const std::vector<Beat>& beats) const;
  [[noreturn]] void throw_agreed(const std::exception_ptr& mine, const std::vector<Beat>& beats);

  Peers* ranks_ = nullptr;
  std::vector<std::string> hosts_;
  std::map<std::string, std::string> given_;
  std::uint64_t steps_ = 0;
};

/// The threads that a rank takes by default: of a machine's processors its part, unless it is bound to some of them,
/// and then those; at most as many as a process alone takes.
unsigned default_threads(const Together& together);

}  // namespace reshard
