// engine/: runs a program: processes logical tensors in blocks, reads each source byte once, writes long runs, and
// publishes the outputs when all are complete.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "reshard/engine/move/shared_pages.h"
#include "reshard/engine/units/share.h"
#include "reshard/engine/units/share_report.h"
#include "reshard/engine/units/unit_ledger.h"
#include "reshard/engine/units/units.h"
#include "reshard/io/open_store.h"
#include "reshard/plan/job/program.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {

class Lots;
class PageFragments;

/// How far a run is.
enum class RunPhase : std::uint8_t {
  kMoving,
  kFlushing,    // all bytes are written, but not yet confirmed by the disk
  kPublishing,  // outputs get their final names: a signal comes too late
};

/// Progress of a run for other threads, and their way to stop it. Thread-safe.
struct Progress {
  std::atomic<std::uint64_t> done_bytes{0};     // of Program::write_bytes, or read_bytes where nothing is written
  std::atomic<std::uint64_t> others_bytes{0};   // likewise, of the other ranks of the run
  std::atomic<std::uint64_t> resumed_bytes{0};  // of Program::write_bytes, what an earlier run has written
  std::atomic<RunPhase> phase{RunPhase::kMoving};
  std::atomic<bool> stop{false};  // set it to end the run with kInterrupted
};

/// What pays, as measured (tests/bench). Outputs do not depend on it; tests let small tensors go every way.
struct Tuning {
  /// Shorter runs are put together here; longer ones by the kernel, which saves a copy but takes its time for each.
  std::uint64_t least_part_bytes = 1024;
  /// Bytes moved for a unit, of which a journal tells whether it is done: at least, where there are not too many.
  std::uint64_t unit_bytes = std::uint64_t{128} << 20;
  /// In which no two ranks write.
  std::uint64_t page_bytes = kLargestPageBytes;
  /// Of a rank's share, the bytes of pages that may go through rank 0 so that ranks can hand over lots: with more, there
  /// are fewer lots, or none.
  double max_shared_part = 1.0 / 32;
};

/// What becomes of replicas that differ. A difference that a check finds for another reason is an error always.
enum class Replicas : std::uint8_t {
  kDrift,  // those that drifted apart (Check::may_drift, ReplicaDistance) are the first rank's; others are an error
  kExact,  // they are an error
  kFirst,  // all are the first rank's, where that may be chosen (Check::may_differ)
};

struct RunOptions {
  unsigned threads = 0;                                       // 0: as many as there are processors, at most 16
  std::uint64_t max_memory_bytes = std::uint64_t{256} << 20;  // buffers, over all threads
  Overflow overflow = Overflow::kSaturate;                    // of casts
  Progress* progress = nullptr;                               // borrowed; may be null
  Stores stores;
  bool sync = true;  // bring what is written to stable storage
  bool journal =
      true;  // with `sync`: a run of more than journal_interval leaves, if it is killed, what resume goes on from
  bool resume = false;  // go on where a run of the same job stopped; what fails leaves its outputs for the next one
  bool clean = false;   // remove first what dead runs of the same outputs have left
  std::chrono::milliseconds journal_interval{10000};
  bool digests = false;  // hash what is written: ShareReport::digests
  Replicas replicas = Replicas::kDrift;
  /// Called once for each replica that differs where that is allowed; one call at a time.
  std::function<void(Divergence)> on_divergence;
  /// Called with what the user should know before any tensor is read: whole sentences. Where there is none, they are in
  /// RunResult::notes.
  std::function<void(const std::string&)> on_note;
  /// Called with each unit of the program when all of its bytes are written, which says nothing of the disk; from
  /// several threads at once.
  std::function<void(UnitReport)> on_unit;
  /// Called when a thread of the run fails, before the others are stopped; not for kInterrupted.
  std::function<void()> on_failure;
  Lots* lots = nullptr;                // borrowed: where more to do comes from; may be null
  PageFragments* fragments = nullptr;  // borrowed: where to put what goes to pages that others write to; may be null
  Tuning tuning;
};

/// The number of threads that options ask for.
unsigned thread_count(const RunOptions& options);

/// The message of kInterrupted.
inline constexpr const char* kStoppedMessage = "stopped by a signal; nothing was written under a final name";

/// Throws if the run is to stop.
/// \throws Error kInterrupted.
void throw_if_stopped(const RunOptions& options);

/// The least memory a run can work in.
inline constexpr std::uint64_t kMinMemoryBytes = std::uint64_t{4} << 20;

/// Sees the bytes of one block of a logical tensor, C-ordered, whole. Called from several threads, each block once.
/// `transfer` is the index into Program::transfers, `block` counts the blocks of that tensor; `against` is the same
/// block as ProgramMaps::against has it, in that map's dtype; empty where there is none. Blocks are ranges of C order:
/// `first_elem` says where this one begins.
struct VisitedBlock {
  std::size_t transfer = 0;
  std::uint64_t block = 0;
  std::uint64_t first_elem = 0;
  std::span<const std::byte> bytes;
  std::span<const std::byte> against;
};
using BlockVisitor = std::function<void(const VisitedBlock& block)>;

/// Moves the bytes of `program` into files under `target_root`, which exist at their full size. Output bytes depend
/// only on the program, not on threads or memory. `maps` are the program's. A visitor's blocks have `visit_block_bytes`
/// bytes whatever the memory.
/// \returns the CRC-32 of each stored tensor of the target whose file needs it, in the order of TensorMap::stored;
/// empty if no file needs it.
/// \throws Error kBadInput if a check finds different bytes (naming both tensors and the first element that differs);
/// kIo, kNoSpace; kInterrupted; kUsage if max_memory_bytes is less than kMinMemoryBytes, or too little for the inputs
/// of a computed tensor.
std::vector<std::uint32_t> run_program(const ProgramMaps& maps, const Program& program,
                                       const std::filesystem::path& target_root, const RunOptions& options,
                                       const BlockVisitor& visitor = {}, std::uint64_t visit_block_bytes = 0);

/// Runs one share of a program as run_program runs all of it. Shares may run at the same time and in any order, in one
/// process or several. The share that contains an element also checks its replicas. Does not call
/// `options.on_divergence`. With RunOptions::digests, shares consist of whole leaves.
/// \throws Error as run_program; kUsage for a share that does not exist, or too little memory for a leaf.
ShareReport run_share(const ProgramMaps& maps, const Program& program, const Share& share,
                      const std::filesystem::path& target_root, RunOptions options);
/// The same for parts of any units.
ShareReport run_parts(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                      const std::filesystem::path& target_root, RunOptions options);

}  // namespace reshard
