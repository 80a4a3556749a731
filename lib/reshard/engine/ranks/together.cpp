#include "reshard/engine/ranks/together.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "reshard/base/strings.h"
#include "reshard/base/wire.h"

namespace reshard {
enum class State : std::uint64_t { kWorks, kDone, kFailed };

/// The message that each rank sends repeatedly during a step.
struct Beat {
  std::uint64_t step = 0;  // counts steps and gathers
  std::string name;
  State state = State::kWorks;
  bool signalled = false;
  std::uint64_t done_bytes = 0;
  std::string payload;  // data of a gather, or of Talk::tell

  static auto fields(auto& self) {
    return std::tie(self.step, self.name, self.state, self.signalled, self.done_bytes, self.payload);
  }
};

namespace {

using namespace std::chrono_literals;

// Ranks exchange beats often at first, since steps of small models are short, and then less and less often. A launcher
// that has ended a process may kill the others 0.2 s later, and a rank must hear of the end before that.
constexpr auto kShortestNap = 1ms;
constexpr auto kLongestNap = 50ms;
constexpr auto kSignalNap = 5ms;
constexpr auto kUrgentNap = 5ms;

bool any_in(const std::vector<Beat>& beats, State state) {
  return std::any_of(beats.begin(), beats.end(), [&](const Beat& beat) { return beat.state == state; });
}

std::string error_text(const Error& error) {
  return wire_bytes(error.kind(), error.message(), error.path(), error.tensor(), error.offset_bytes(), error.line(),
                    error.hint());
}

Error error_of(const std::string& text) {
  WireReader wire(text);
  const auto kind = wire.read<ErrorKind>();
  Error error(kind, wire.read<std::string>());
  error.in(wire.read<std::string>());
  error.tensor(wire.read<std::string>());
  if (const auto offset_bytes = wire.read<std::optional<std::uint64_t>>()) error.at_byte(*offset_bytes);
  if (const auto line = wire.read<std::optional<std::uint64_t>>()) error.at_line(*line);
  error.hint(wire.read<std::string>());
  return error;
}

/// Runs work on its own thread, and cleans up if a signal arrives, until the step is over.
class Worker {
 public:
  Worker(const std::function<void()>& work, const std::function<void()>& clean_up, std::function<bool()> signalled)
      : work_(work), clean_up_(clean_up), signalled_(std::move(signalled)), thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { end(); }

  State state() {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  const std::exception_ptr& failure() const { return failure_; }  // after the work

  /// Sleeps for `time`, or until the work ends or a signal arrives.
  void nap(std::chrono::milliseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    std::unique_lock lock(mutex_);
    while (state_ == State::kWorks && !signalled_() && std::chrono::steady_clock::now() < until)
      changed_.wait_for(lock, std::min<std::chrono::milliseconds>(time, kSignalNap));
    if (state_ != State::kWorks || signalled_()) {
      lock.unlock();
      std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(time, kSignalNap));
    }
  }

  /// Waits for the work to end.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    State end = State::kDone;
    try {
      work_();
    } catch (...) {
      failure_ = std::current_exception();
      end = State::kFailed;
    }
    std::unique_lock lock(mutex_);
    state_ = end;
    changed_.notify_all();
    while (clean_up_ && !signalled_() && !over_) changed_.wait_for(lock, kSignalNap);
    lock.unlock();
    if (clean_up_ && signalled_()) clean_up_();
  }

  const std::function<void()>& work_;
  const std::function<void()>& clean_up_;
  std::function<bool()> signalled_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kWorks;
  bool over_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

Together::Together(Peers& ranks, const std::string& host) : ranks_(&ranks), hosts_(ranks.gather(host)) {}

std::uint32_t Together::local_size() const {
  return ranks_ ? static_cast<std::uint32_t>(std::count(hosts_.begin(), hosts_.end(), hosts_.at(rank()))) : 1;
}

std::string Together::process(std::uint32_t rank) const {
  return fmt::format("rank {} on {}", rank, hosts_.at(rank));
}

std::string Together::other_options(std::uint32_t rank) const {
  if (!ranks_) return {};
  const std::vector<std::string> all = ranks_->gather(wire_bytes(given_));
  const auto given_of = [&](std::uint32_t of) { return WireReader(all.at(of)).read<decltype(given_)>(); };
  const auto text = [](const auto& option) {
    return option.second.empty() ? option.first : fmt::format("{} {}", option.first, printable(option.second));
  };
  const auto ours = given_of(0), theirs = given_of(rank);
  std::vector<std::string> differences;
  for (const auto& option : theirs) {
    const auto found = ours.find(option.first);
    if (found == ours.end())
      differences.push_back(text(option) + " besides");
    else if (found->second != option.second)
      differences.push_back(fmt::format("{} in place of {}", text(option), text(*found)));
  }
  for (const auto& option : ours)
    if (!theirs.contains(option.first)) differences.push_back("without " + text(option));
  if (differences.empty()) return {};
  return ": " + join(differences, "; ");
}

/// Exchanges beats until no rank is working any more; once if none is. Throws if a rank failed.
/// \param mine  returns this rank's current beat.
/// \param heard  called with all ranks' beats each time.
/// \returns the last beats of all ranks.
std::vector<Beat> Together::meet(const std::function<Beat()>& mine,
                                 const std::function<void(const std::vector<Beat>&)>& heard,
                                 const std::function<std::exception_ptr()>& failure) {
  std::vector<Beat> beats;
  do {
    beats.clear();
    for (const std::string& text : ranks_->gather(wire_bytes(mine()))) beats.push_back(WireReader(text).read<Beat>());
    validate_same_step(beats);
    heard(beats);
  } while (any_in(beats, State::kWorks));
  if (any_in(beats, State::kFailed)) throw_agreed(failure(), beats);
  return beats;
}

/// Applies only if no rank failed, since a rank may have failed before the step.
void Together::validate_same_step(const std::vector<Beat>& beats) const {
  if (any_in(beats, State::kFailed)) return;
  for (std::uint32_t rank = 1; rank < beats.size(); ++rank) {
    if (beats[rank].step == beats[0].step && beats[rank].name == beats[0].name) continue;
    throw AgreedError(
        std::move(Error(ErrorKind::kUsage, fmt::format("{} wants to {}, and {} to {}{}", process(0), beats[0].name,
                                                       process(rank), beats[rank].name, other_options(rank)))
                      .hint("start all ranks with the same command line")));
  }
}

void Together::step(const std::string& name, Progress& progress, const std::function<void()>& work,
                    const std::function<void()>& clean_up, const Talk& talk) {
  if (!ranks_) return work();
  ++steps_;
  std::atomic<bool> stopped_by_others{false};
  const auto signalled = [&] { return progress.stop && !stopped_by_others; };
  Worker worker(work, clean_up, signalled);
  auto nap = std::chrono::milliseconds(kShortestNap);
  const auto heard = [&](const std::vector<Beat>& beats) {
    std::uint64_t others_bytes = 0;
    bool any_stops = false;
    for (std::uint32_t rank = 0; rank < beats.size(); ++rank) {
      any_stops = any_stops || beats[rank].state == State::kFailed || beats[rank].signalled;
      if (rank != this->rank()) others_bytes += beats[rank].done_bytes;
    }
    progress.others_bytes = others_bytes;
    if (any_stops && !progress.stop) {
      stopped_by_others = true;
      progress.stop = true;
    }
    if (!any_in(beats, State::kWorks)) return;
    bool is_urgent = false;
    if (talk.hear && !any_in(beats, State::kFailed)) {
      std::vector<std::string> told;
      told.reserve(beats.size());
      for (const Beat& beat : beats) told.push_back(beat.payload);
      is_urgent = talk.hear(told);
    }
    worker.nap(is_urgent ? std::min(nap, std::chrono::milliseconds(kUrgentNap)) : nap);
    nap = std::min(nap * 3 / 2 + 1ms, std::chrono::milliseconds(kLongestNap));
  };
  const auto mine = [&] {
    return Beat{
        steps_, name, worker.state(), signalled(), progress.done_bytes, talk.tell ? talk.tell() : std::string()};
  };
  try {
    meet(mine, heard, [&] { return worker.failure(); });
  } catch (...) {
    stopped_by_others = true;
    progress.stop = true;
    worker.end();
    throw;
  }
  worker.end();
}

void Together::fail(const std::exception_ptr& why) {
  if (!ranks_) std::rethrow_exception(why);
  Beat beat{++steps_, "fail", State::kFailed, false, 0, {}};
  meet([&] { return beat; }, [](const std::vector<Beat>&) {}, [&] { return why; });
  throw Error(ErrorKind::kInternal, "ranks did not agree on a failure");  // meet throws
}

/// Throws the error of one of the failed ranks. There is at least one.
void Together::throw_agreed(const std::exception_ptr& mine, const std::vector<Beat>& beats) {
  const std::vector<std::string> texts = ranks_->gather(mine ? error_text(as_error(mine)) : std::string());
  std::optional<std::uint32_t> chosen;
  bool all_alike = true;
  bool is_stop = true;  // the chosen rank was stopped
  for (std::uint32_t rank = 0; rank < texts.size(); ++rank) {
    all_alike = all_alike && texts[rank] == texts[0];
    if (texts[rank].empty()) continue;
    const bool stops = error_of(texts[rank]).kind() == ErrorKind::kInterrupted;
    // A rank that was stopped because another one failed is not the cause. After a signal, however, other failures are
    // consequences.
    if (!chosen || (is_stop && !stops)) {
      chosen = rank;
      is_stop = stops;
    }
    if (stops && beats[rank].signalled) {
      chosen = rank;
      break;
    }
  }
  Error error = error_of(texts.at(chosen.value()));
  if (!all_alike && error.kind() != ErrorKind::kInterrupted) error.by(process(*chosen));
  throw AgreedError(std::move(error));
}

std::vector<std::string> Together::gather(const std::string& name, std::string mine) {
  std::vector<std::string> all;
  if (!ranks_) {
    all.push_back(std::move(mine));
    return all;
  }
  Beat beat{++steps_, name, State::kDone, false, 0, std::move(mine)};
  for (Beat& one : meet([&] { return beat; }, [](const std::vector<Beat>&) {}, [] { return nullptr; }))
    all.push_back(std::move(one.payload));
  return all;
}

std::string Together::from_leader(const std::string& name, std::string mine) {
  return std::move(gather(name, leads() ? std::move(mine) : std::string()).front());
}

unsigned default_threads(const Together& together) {
  const unsigned most = thread_count({});
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const unsigned usable = std::max(1u, std::thread::hardware_concurrency());  // in the process's affinity mask
  if (online > 0 && usable < static_cast<unsigned long>(online)) return most;
  return std::clamp(usable / together.local_size(), 1u, most);
}

}  // namespace reshard
