#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "reshard/base/crc32.h"
#include "reshard/engine/move/block_queue.h"
#include "reshard/engine/move/buffer.h"
#include "reshard/engine/move/file_pool.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/move/write_back.h"
#include "reshard/engine/units/unit_ledger.h"
#include "reshard/layouts/map/target_file.h"

namespace reshard {

/// CRC-32s of the bytes written so far to each tensor of a target. Ranges may be added in any order and by several
/// threads. Empty if no file of the target needs CRCs.
class Checksums {
 public:
  explicit Checksums(const TargetMap* target) {
    if (target && std::any_of(target->files.begin(), target->files.end(), needs_crcs))
      crcs_ = std::vector<std::atomic<std::uint32_t>>(target->stored.size());
  }

  bool wanted() const { return !crcs_.empty(); }

  /// Adds `bytes` bytes written to a stored tensor at byte `begin_bytes`.
  /// \returns their contribution to the CRC; 0 if no CRC is needed.
  std::uint32_t add(const TargetMap& target, std::uint32_t stored, std::uint64_t begin_bytes, std::uint64_t bytes,
                    std::span<const std::span<const std::byte>> parts) {
    const StoredTensor& tensor = target.stored[stored];
    if (crcs_.empty() || !needs_crcs(target.files[tensor.file])) return 0;
    std::uint32_t crc = 0;
    for (const auto part : parts) crc = crc32(part, crc);
    const std::uint32_t contribution = crc32_contribution(crc, tensor.size_bytes() - begin_bytes - bytes);
    crcs_[stored] ^= contribution;
    return contribution;
  }

  std::vector<std::uint32_t> values() const { return {crcs_.begin(), crcs_.end()}; }

 private:
  std::vector<std::atomic<std::uint32_t>> crcs_;
};

/// Number of files that each pool of a run keeps open: an eighth of the process's limit, at most 256. A run has three
/// pools, and pending write-backs keep about as many files open.
std::size_t open_files();

/// Validates that a source file in `files` is still the one in the map.
/// \throws Error kIo.
void validate_unchanged(Files& files, const SourceFile& file);

/// An input that a recipe reads whole (Recipe::Access::kWhole).
struct KeptInput {
  std::once_flag read;
  std::vector<std::byte> bytes;  // set once `read` is done
};

/// State shared by all threads of a run or of one of its shares.
struct RunState {
  RunState(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
           const std::filesystem::path& target_root, const RunOptions& options, const BlockVisitor& visitor,
           unsigned threads, const BlockSizes& blocks);

  /// Records the first of several failures and stops all threads.
  void fail(std::exception_ptr why);

  /// Gives an idle worker another lot, or waits briefly for one. \returns false if there will be no more.
  /// \throws Error kInterrupted.
  bool add_lot(unsigned worker);

  /// Opens file `file` of a map through its pool.
  /// \throws Error kBadInput or kIo.
  std::shared_ptr<Source> open(const SourceMap& map, FilePool<Source>& files, std::uint32_t file) const;

  ProgramMaps maps;
  const Program& program;
  const std::filesystem::path& target_root;
  const RunOptions& options;
  const BlockVisitor& visitor;
  unsigned threads;
  std::uint64_t joined_bytes;  // see BlockSizes
  BlockQueue queue;
  std::atomic<bool> failed{false};   // or interrupted: all threads stop
  std::atomic<bool> spoiled{false};  // failed for a reason other than a signal
  std::mutex failure_mutex;
  std::exception_ptr failure;
  /// Replicas with a permitted difference: a map and its indices of the stored and the logical tensor.
  std::set<std::tuple<const SourceMap*, std::uint32_t, std::uint32_t>> divergent;
  std::set<std::size_t> inexact;                            // transfers with Findings::inexact
  std::map<std::size_t, Lost> lost;                         // keyed by transfer; `failure_mutex` guards all four
  std::map<const Reading*, std::weak_ptr<KeptInput>> kept;  // alive while a thread computes with it
  FilePool<Source> sources;
  FilePool<Source> others;  // of ProgramMaps::against
  FilePool<Sink> sinks;
  Checksums checksums;
  std::vector<LeafDigests> digests;  // by target tensor; empty if not requested
  std::atomic<std::uint64_t> hashing_ns{0};
  std::unique_ptr<UnitLedger> ledger;  // null if no units are reported
  WriteBack write_back;
  std::vector<std::atomic<bool>> written;    // whether anything was written to each target file
  std::atomic<std::uint64_t> done_bytes{0};  // see Progress
};

/// Bytes read at once for single elements that are close to each other in a file.
inline constexpr std::uint64_t kReadAheadBytes = std::uint64_t{256} << 10;

/// One thread's memory. Each buffer is at most one block; `staging` at most two. `joined` has what several blocks write;
/// BlockSizes::joined_bytes limits all of them.
struct Buffers {
  Buffer block;
  Buffer staging;
  Buffer joined;
  Buffer other;
  Buffer against;
  std::deque<Buffer> inputs;      // inputs of a computed tensor
  std::vector<std::byte> window;  // at most kReadAheadBytes
};

}  // namespace reshard
