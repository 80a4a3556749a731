#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/peers.h"

namespace reshard {

/// An error that all ranks know: each of them throws it.
class AgreedError : public Error {
 public:
  explicit AgreedError(Error error) : Error(std::move(error)) {}
};

struct Beat;

/// Payloads that ranks exchange at each beat of a step.
struct Talk {
  std::function<std::string()> tell;
  /// \param told  by each rank.  \returns whether the next beat should follow soon.
  std::function<bool(const std::vector<std::string>& told)> hear;
};

/// Steps that processes take together: each does its own work, and all succeed or all fail. A process may also be
/// alone.
class Together {
 public:
  /// A single process.
  Together() = default;
  /// One of several ranks; borrows `ranks`. All ranks construct this at the same time, since they exchange host names.
  /// \param host  the name of this machine.
  /// \throws RankLost.
  Together(Peers& ranks, const std::string& host);

  std::uint32_t rank() const { return ranks_ ? ranks_->rank() : 0; }
  std::uint32_t size() const { return ranks_ ? ranks_->size() : 1; }
  bool leads() const { return rank() == 0; }
  /// Number of ranks on this machine.
  std::uint32_t local_size() const;
  /// "rank 3 on node17".
  std::string process(std::uint32_t rank) const;

  /// Sets the options given to this rank: names with values, empty for a switch. Used in errors, to report which
  /// options differ between ranks.
  void set_given(std::map<std::string, std::string> given) { given_ = std::move(given); }
  /// Describes how the options of `rank` differ from rank 0's: ": --tp 2 in place of --tp 4"; empty if they are equal.
  /// A collective call.
  /// \throws RankLost.
  std::string other_options(std::uint32_t rank) const;

  /// Does `work`, on another thread if there are other ranks, and returns when all ranks are done. Meanwhile this
  /// thread exchanges beats: it adds up the other ranks' bytes in Progress::others_bytes, and stops all ranks if
  /// Progress::stop is set on one or if one fails.
  /// \param name  of the step, the same on all ranks: "plan".
  /// \param clean_up  called once, on another thread, if a signal stops this process: immediately, since the sender may
  /// kill the process before the other ranks have answered.
  /// \param talk  called by this thread; unused if this process is alone.
  /// \throws Error what `work` throws, if alone; otherwise AgreedError, the same on all ranks: the error of the lowest
  /// failed rank, but a signal takes precedence; RankLost.
  void step(const std::string& name, Progress& progress, const std::function<void()>& work,
            const std::function<void()>& clean_up = {}, const Talk& talk = {});

  /// Reports to the other ranks that this process failed outside a step, so that they fail, too, wherever they are.
  /// \throws Error `why`, if alone; otherwise AgreedError, see step; RankLost.
  [[noreturn]] void fail(const std::exception_ptr& why);

  /// Returns each rank's string, by rank.
  /// \throws AgreedError if another rank failed before its call; RankLost.
  std::vector<std::string> gather(const std::string& name, std::string mine);
  /// Returns rank 0's string.
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

/// Default number of threads of a rank: its share of the machine's processors, or all processors that the process is
/// bound to; at most the default of a single process.
unsigned default_threads(const Together& together);

}  // namespace reshard
