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
  std::string file_system;  // that contains the work directory
  std::string date;         // of today, UTC
};
Machine machine_facts(const std::filesystem::path& directory);

/// A new directory, removed with all it holds at the end.
class WorkDir {
 public:
  explicit WorkDir(const std::filesystem::path& parent);
  WorkDir(const WorkDir&) = delete;
  WorkDir& operator=(const WorkDir&) = delete;
  ~WorkDir();

  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  /// Empties the files of a directory in this one and moves it out of the way. Removing them would make ext4 slow to
  /// create others: for a minute it goes past the inodes of what was removed, one by one.
  void retire(const std::filesystem::path& directory) const;

 private:
  std::filesystem::path path_;
  mutable unsigned retired_ = 0;
};

std::uint64_t free_bytes(const std::filesystem::path& directory);
/// The size of all files in `directory`.
std::uint64_t tree_bytes(const std::filesystem::path& directory);

/// Reads every byte of `directory` into the page cache.
void read_tree(const std::filesystem::path& directory);

/// Waits until the file system has written what it holds back and the device has done with it, so that no run pays for
/// the one before: blocks of removed files may still be discarded after all is written.
void settle(const std::filesystem::path& directory);

/// Keeps the memory that nothing uses full of a sparse file's pages. So it is on a machine that has worked for a while;
/// and the free memory of a virtual machine may be with its host, where whoever takes a page first waits for it: runs
/// would differ by several times, whatever they do.
class MemoryFiller {
 public:
  /// Makes the file in `directory`; it takes no disk.
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
/// \throws std::runtime_error without the rights to.
void drop_caches();

}  // namespace reshard::bench
