#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <vector>

#include "reshard/engine/block_queue.h"
#include "reshard/engine/checksums.h"
#include "reshard/engine/file_pool.h"
#include "reshard/engine/run.h"
#include "reshard/engine/write_back.h"

namespace reshard {

inline constexpr std::size_t kOpenFiles = 256;  // of each side; the usual limit is 1024 a process

/// What all threads of a run share.
struct SharedRun {
  const Program& program;
  const std::filesystem::path& target_root;
  const RunOptions& options;
  const BlockVisitor& visitor;
  unsigned threads;
  BlockQueue queue;
  Checksums checksums;
  WriteBack write_back;
  std::vector<std::atomic<unsigned>> writers;  // of each target file: threads that write to it just now
  FilePool<Source> sources{kOpenFiles};
  FilePool<Source> others{kOpenFiles};  // of Program::against
  FilePool<Sink> sinks{kOpenFiles};
  std::atomic<bool> cannot_copy_in_kernel{false};
  std::atomic<bool> failed{false};
  std::mutex failure_mutex{};
  std::exception_ptr failure{};
  std::set<const StoredTensor*> divergent{};
};

/// One thread's memory, each about as large as a block; `staging` up to two.
struct Buffers {
  std::vector<std::byte> block;
  std::vector<std::byte> staging;
  std::vector<std::byte> other;
  std::vector<std::byte> against;
  std::vector<std::byte> window;  // of a few hundred KiB
};

}  // namespace reshard
