#pragma once

// Runs that stop in the middle, and what they leave.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "engine/some_jobs.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/publish/journal.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/files.h"

namespace reshard::test {

/// Small units, each of which is journalled at once.
inline RunOptions journalled(Storage& storage, Progress* progress = nullptr) {
  RunOptions options;
  options.stores = storage;
  options.threads = 1;
  options.journal_interval = std::chrono::milliseconds(0);
  options.tuning.unit_bytes = 2000;
  options.tuning.max_shared_part = 1e9;  // so that ranks hand over lots
  options.progress = progress;
  return options;
}

inline RunOptions resuming(Storage& storage = local_storage()) {
  RunOptions options = journalled(storage);
  options.resume = true;
  return options;
}

/// Bytes that are in units of the journals in `root`.
inline std::uint64_t journalled_bytes(const std::filesystem::path& root) {
  std::map<std::uint32_t, std::uint64_t> units;
  for (const std::string& name : journal_files(local_storage(), root)) {
    const auto journal = parse_journal(read_file(root / name));
    if (!journal) continue;
    for (const UnitReport& unit : journal->units) units[unit.unit] = unit.written_bytes;
  }
  return std::accumulate(units.begin(), units.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& unit) { return sum + unit.second; });
}

inline std::optional<std::filesystem::path> staging_in(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().filename().string().find(".reshard-") != std::string::npos) return entry.path();
  return std::nullopt;
}

/// Has all writes fail from when a run in `directory` has so many files of a journal.
inline void fail_after_journals(FaultStorage& storage, const std::filesystem::path& directory, std::size_t count,
                                ErrorKind kind) {
  const auto fails = std::make_shared<std::atomic<bool>>(false);
  storage.before = [=](FaultStorage::Operation operation, std::uint64_t) {
    if (operation != FaultStorage::Operation::kWrite) return;
    const auto staging = staging_in(directory);
    if (staging && journal_files(local_storage(), *staging).size() >= count) *fails = true;
    if (*fails) throw Error(kind, "made to fail");
  };
}

/// A job that was stopped in the middle and may go on.
struct Stopped {
  Stopped() {
    FaultStorage storage;
    fail_after_journals(storage, jobs.temp.path(), 2, ErrorKind::kNoSpace);
    CHECK(error_of([&] { execute(*job, journalled(storage)); }).kind() == ErrorKind::kNoSpace);
    root = staging_in(jobs.temp.path()).value();
  }
  Error resume(const Job& what) {
    return error_of([&] { execute(what, resuming()); });
  }
  std::vector<std::string> journals() const { return journal_files(local_storage(), root); }

  Jobs jobs;
  std::unique_ptr<Job> job = jobs.plan();
  std::filesystem::path root;
};

}  // namespace reshard::test
