#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "reshard/base/note.h"
#include "reshard/io/open_store.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {

struct Divergence;
struct UnitReport;
class Lots;
class PageFragments;

/// The phase of a run.
enum class RunPhase : std::uint8_t {
  kMoving,
  kFlushing,    // all bytes are written, but not yet confirmed by the disk
  kPublishing,  // outputs are moved to their final paths; a signal no longer stops the run
};

/// Progress of a run for other threads, and their way to stop it. Thread-safe.
struct Progress {
  std::atomic<std::uint64_t> done_bytes{0};     // of Program::write_bytes, or of read_bytes if nothing is written
  std::atomic<std::uint64_t> others_bytes{0};   // likewise, for the other ranks of the run
  std::atomic<std::uint64_t> resumed_bytes{0};  // part of Program::write_bytes that an earlier run wrote
  std::atomic<RunPhase> phase{RunPhase::kMoving};
  std::atomic<bool> stop{false};  // set to end the run with kInterrupted
};

/// The largest page in which any machine caches files: 64 KiB, on some Arm and POWER kernels. Smaller page sizes divide
/// it.
inline constexpr std::uint64_t kLargestPageBytes = std::uint64_t{64} << 10;

/// Performance parameters, measured with tests/bench. Outputs do not depend on them; tests use small values.
struct Tuning {
  /// Runs shorter than this are gathered in a buffer. The kernel gathers longer ones: no copy, but a cost per run.
  std::uint64_t least_part_bytes = 1024;
  /// Minimum bytes moved per unit, the granularity of journals. Units are larger if there would be too many of them.
  std::uint64_t unit_bytes = std::uint64_t{128} << 20;
  /// Page size; no two ranks write to the same page.
  std::uint64_t page_bytes = kLargestPageBytes;
  /// Maximum size of all shared pages, which go through rank 0, as a fraction of the bytes of one share. If the lots
  /// would exceed it, there are fewer lots, or none.
  double max_shared_part = 1.0 / 32;
};

/// How to handle replicas that differ. A difference that any other check finds is always an error.
enum class Replicas : std::uint8_t {
  kDrift,  // takes the first rank's if they drifted apart (Check::may_drift, ReplicaDistance); otherwise an error
  kExact,  // every difference is an error
  kFirst,  // like kDrift, but also takes the first rank's if Check::may_differ
};

/// The minimum memory for a run.
inline constexpr std::uint64_t kMinMemoryBytes = std::uint64_t{4} << 20;

struct RunOptions {
  unsigned threads = 0;                                       // 0: the number of processors, at most 16
  std::uint64_t max_memory_bytes = std::uint64_t{256} << 20;  // buffers, over all threads
  Overflow overflow = Overflow::kSaturate;                    // of casts
  Progress* progress = nullptr;                               // borrowed; may be null
  Stores stores;
  bool sync = true;  // flush outputs to stable storage
  /// With `sync`: journals completed units every journal_interval, so that a killed run can be resumed.
  bool journal = true;
  bool resume = false;  // continue an interrupted run of the same job; if this run fails, the next one can continue it
  bool clean = false;   // first delete stale staging directories of the same outputs
  std::chrono::milliseconds journal_interval{10000};
  bool digests = false;  // hash the written tensors: ShareReport::digests
  Replicas replicas = Replicas::kDrift;
  /// Called once per replica with an allowed difference; one call at a time.
  std::function<void(Divergence)> on_divergence;
  /// Called with each note for the user that is known before any tensor is read. If null, these notes are added to
  /// RunResult::notes.
  std::function<void(const Note&)> on_note;
  /// Called with each unit of the program when all of its bytes are written, but not necessarily flushed; from several
  /// threads at once.
  std::function<void(UnitReport)> on_unit;
  /// Called when a thread of the run fails, before the others are stopped; not for kInterrupted.
  std::function<void()> on_failure;
  Lots* lots = nullptr;                // borrowed: source of further work; may be null
  PageFragments* fragments = nullptr;  // borrowed: receives the bytes of shared pages; may be null
  Tuning tuning;
};

/// Returns the number of threads to use.
unsigned thread_count(const RunOptions& options);

/// The message of kInterrupted.
inline constexpr const char* kStoppedMessage = "stopped by a signal";

/// Throws if Progress::stop is set.
/// \throws Error kInterrupted.
void throw_if_stopped(const RunOptions& options);

}  // namespace reshard
