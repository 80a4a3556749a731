#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace reshard::bench {

struct Machine {
  std::string cpu;
  unsigned cores = 1;
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string file_system;  // type of the work directory's file system
  std::string date;         // today, UTC
};
Machine machine_facts(const std::filesystem::path& directory);

/// A new directory that is removed, with its contents, by the destructor.
class WorkDir {
 public:
  explicit WorkDir(const std::filesystem::path& parent);
  WorkDir(const WorkDir&) = delete;
  WorkDir& operator=(const WorkDir&) = delete;
  ~WorkDir();

  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  /// Empties the files of a subdirectory and moves it away. Does not remove it: for a minute after a removal, ext4 is
  /// slow to create files, since it skips the removed inodes one by one.
  void retire(const std::filesystem::path& directory) const;

 private:
  std::filesystem::path path_;
  mutable unsigned retired_ = 0;
};

std::uint64_t free_bytes(const std::filesystem::path& directory);
/// Returns the size of all files in `directory`.
std::uint64_t tree_bytes(const std::filesystem::path& directory);

/// Reads every byte of `directory` into the page cache.
void read_tree(const std::filesystem::path& directory);

/// Waits until the file system has written its dirty pages and the device is idle, so that no run pays for the previous
/// one. Blocks of removed files may still be discarded after all is written.
void settle(const std::filesystem::path& directory);

/// Keeps unused memory filled with pages of a sparse file, as on a machine that has worked for a while. Free memory of
/// a virtual machine may belong to its host, and the first use of each page then waits for it, so that run times would
/// vary by several times.
class MemoryFiller {
 public:
  /// Creates the file in `directory`. It takes no disk space.
  explicit MemoryFiller(const std::filesystem::path& directory);
  MemoryFiller(const MemoryFiller&) = delete;
  MemoryFiller& operator=(const MemoryFiller&) = delete;
  ~MemoryFiller();

  void fill();

 private:
  int file_;
  std::uint64_t size_bytes_;
  std::uint64_t at_bytes_ = 0;
};

/// Empties the page cache.
/// \throws std::runtime_error if the process lacks permission.
void drop_caches();

}  // namespace reshard::bench
