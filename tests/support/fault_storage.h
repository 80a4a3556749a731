#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/io/local_directories.h"
#include "reshard/io/storage.h"

namespace reshard::test {

/// The local file system, watched: it notes every operation and every range that is read, calls a hook before each
/// operation, and fails the operation it is told to. Other files may be read in its place. Thread-safe.
class FaultStorage final : public Storage {
 public:
  enum class Operation { kLook, kOpen, kCreate, kReopen, kRead, kWrite, kWriteBack, kFinish, kSync };
  struct Range {
    std::uint64_t begin_bytes;
    std::uint64_t end_bytes;
  };
  struct Step {
    Operation operation;
    std::filesystem::path path;
  };

  FaultStorage() = default;
  /// Reads what `files` has from there, which is borrowed; all else is on the local file system.
  explicit FaultStorage(Files& files) : files_(&files) {}

  /// Called before every operation with its number, from 0; may throw in its place.
  std::function<void(Operation operation, std::uint64_t number)> before;
  /// The operation of this number fails with `kind`, and so does every later one.
  std::optional<std::uint64_t> fail_at;
  /// The operation of this number, a read, finds the file cut in the middle of its range.
  std::optional<std::uint64_t> cut_at;
  /// The write that would bring what was written to more than this fails with `kind`.
  std::optional<std::uint64_t> fail_after_bytes;
  ErrorKind kind = ErrorKind::kIo;
  Directories* own_directories = nullptr;  // borrowed
  /// Whether ranges may be copied from file to file.
  bool copies_in_kernel = true;

  std::unique_ptr<Source> open(const std::filesystem::path& path) override;
  std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) override;
  std::unique_ptr<Sink> reopen(const std::filesystem::path& path) override;
  /// Not operations: tests put their own in this place.
  Directories& directories() override { return own_directories ? *own_directories : local_directories(); }
  std::vector<DirectoryEntry> list(const std::filesystem::path& directory) override;
  FileKind kind_of(const std::filesystem::path& path) override;
  /// Not an operation: stamps do not fail.
  FileStamp stamp(const std::filesystem::path& path) override;
  FileStamp lasting_stamp(const std::filesystem::path& path) override;
  std::uint64_t size_bytes(const std::filesystem::path& path) override;
  /// Not an operation: it looks at nothing.
  std::filesystem::path absolute(const std::filesystem::path& path) override;
  std::filesystem::path resolve(const std::filesystem::path& path) override;
  /// Not an operation: it does not fail.
  bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) override;

  std::uint64_t operations() const { return operations_; }
  /// All operations so far, in the order of their numbers where one thread makes them.
  std::vector<Step> steps() const;
  std::uint64_t written_bytes() const { return written_bytes_; }
  std::uint64_t count(Operation operation) const;
  /// Of the bytes that were written, those copied from file to file.
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// Everything that was read of a file.
  std::vector<Range> reads(const std::filesystem::path& path) const;
  /// Everything that was written to a file.
  std::vector<Range> writes(const std::filesystem::path& path) const;
  /// How often each byte of a file of `size_bytes` was read.
  std::vector<unsigned> read_counts(const std::filesystem::path& path, std::uint64_t size_bytes) const;

  // For the files that it hands out.
  void note_copied(std::uint64_t bytes) { copied_bytes_ += bytes; }
  std::uint64_t pass(Operation operation, const std::filesystem::path& path);
  void note_read(const std::filesystem::path& path, Range range);
  void note_write(const std::filesystem::path& path, Range range);

 private:
  Files& files_with(const std::filesystem::path& path) const;

  Files* files_ = nullptr;
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<std::uint64_t> written_bytes_{0};
  std::atomic<std::uint64_t> copied_bytes_{0};
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<Range>> reads_, writes_;
  std::map<Operation, std::uint64_t> counts_;
  std::vector<Step> steps_;
};

}  // namespace reshard::test
