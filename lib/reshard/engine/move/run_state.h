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

/// The CRC-32s of a target's tensors, of what has been written of them so far. Parts may come in any order and from
/// several threads. Empty where no file of the target has need of them.
class Checksums {
 public:
  explicit Checksums(const TargetMap* target) {
    if (target && std::any_of(target->files.begin(), target->files.end(), needs_crcs))
      crcs_ = std::vector<std::atomic<std::uint32_t>>(target->stored.size());
  }

  bool wanted() const { return !crcs_.empty(); }

  /// Adds `bytes`, which are written to a stored tensor from its byte `begin_bytes` on.
  /// \returns what that adds to the CRC; 0 where none is wanted.
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

/// How many files each pool of a run keeps open: an eighth of what the process may have, at most 256. There are three
/// pools; what is on its way to the disk keeps about as many.
std::size_t open_files();

/// A file of a source in `files` is still the one that the map is about.
/// \throws Error kIo.
void validate_unchanged(Files& files, const SourceFile& file);

/// A tensor that a recipe reads whole (Recipe::Access::kWhole).
struct KeptInput {
  std::once_flag read;
  std::vector<std::byte> bytes;  // once it is read
};

/// What all threads of a run, or of a share of it, have in common.
struct RunState {
  RunState(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
           const std::filesystem::path& target_root, const RunOptions& options, const BlockVisitor& visitor,
           unsigned threads, const BlockSizes& blocks);

  /// Keeps the first of several failures, and has all threads stop.
  void fail(std::exception_ptr why);

  /// Gives a worker that has nothing left a further lot, or waits a moment for one. \returns false when none will come.
  /// \throws Error kInterrupted.
  bool add_lot(unsigned worker);

  /// File `file` of a map, from its pool.
  /// \throws Error kBadInput or kIo.
  std::shared_ptr<Source> open(const SourceMap& map, FilePool<Source>& files, std::uint32_t file) const;

  ProgramMaps maps;
  const Program& program;
  const std::filesystem::path& target_root;
  const RunOptions& options;
  const BlockVisitor& visitor;
  unsigned threads;
  BlockQueue queue;
  std::atomic<bool> failed{false};   // or interrupted: all threads stop
  std::atomic<bool> spoiled{false};  // failed for another reason than a signal
  std::mutex failure_mutex;
  std::exception_ptr failure;
  /// Replicas that differ and may: index of the stored tensor, and of the logical one, of a map.
  std::set<std::tuple<const SourceMap*, std::uint32_t, std::uint32_t>> divergent;
  std::set<std::size_t> inexact;  // transfers with Findings::inexact; of `failure_mutex`, as are these
  std::map<const Reading*, std::weak_ptr<KeptInput>> kept;  // as long as a thread computes with it
  FilePool<Source> sources;
  FilePool<Source> others;  // of ProgramMaps::against
  FilePool<Sink> sinks;
  Checksums checksums;
  std::vector<LeafDigests> digests;  // by the target's tensor; empty where none are wanted
  std::atomic<std::uint64_t> hashing_ns{0};
  std::unique_ptr<UnitLedger> ledger;  // null if the caller wants no units
  WriteBack write_back;
  std::vector<std::atomic<bool>> written;    // whether anything was written to each target file
  std::atomic<std::uint64_t> done_bytes{0};  // see Progress
};

/// Of single elements that lie near each other in a file, so much is read at once.
inline constexpr std::uint64_t kReadAheadBytes = std::uint64_t{256} << 10;

/// One thread's memory, each at most as large as a block; `staging` up to two.
struct Buffers {
  Buffer block;
  Buffer staging;
  Buffer other;
  Buffer against;
  std::deque<Buffer> inputs;      // of a tensor that is computed
  std::vector<std::byte> window;  // of kReadAheadBytes at most
};

}  // namespace reshard
