#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "reshard/io/local_directories.h"
#include "support/fault_storage.h"

namespace reshard::test {

/// The local file system's, which swap names only if they may, and call a hook before each step.
class TestDirectories final : public Directories {
 public:
  bool exchanges = true;
  std::optional<std::uint64_t> free;  // bytes
  bool owns = true;                   // what the user has made
  bool keeps_attributes = true;
  std::function<void(const char* step, const std::filesystem::path& path)> before = [](const char*,
                                                                                       const std::filesystem::path&) {};

  std::optional<std::string> link_target(const std::filesystem::path& path) override {
    return local_directories().link_target(path);
  }
  bool is_own(const std::filesystem::path& path) override { return owns && local_directories().is_own(path); }
  std::optional<Access> access(const std::filesystem::path& path) override { return local_directories().access(path); }
  void set_access_bits(const std::filesystem::path& path, std::uint32_t bits) override {
    before("access", path);
    local_directories().set_access_bits(path, bits);
  }
  bool copy_attributes(const std::filesystem::path& from, const std::filesystem::path& to) override {
    before("attributes", to);
    return keeps_attributes && local_directories().copy_attributes(from, to);
  }
  std::uint32_t bits_for_new() override { return local_directories().bits_for_new(); }
  void validate_writable(const std::filesystem::path& directory) override {
    before("writable", directory);
    local_directories().validate_writable(directory);
  }
  std::uint64_t free_bytes(const std::filesystem::path& directory) override {
    before("space", directory);
    return free ? *free : local_directories().free_bytes(directory);
  }
  bool make(const std::filesystem::path& path, std::uint32_t bits) override {
    before("make", path);
    return local_directories().make(path, bits);
  }
  std::filesystem::path make_private(const std::filesystem::path& stem) override {
    before("make", stem);
    return local_directories().make_private(stem);
  }
  void remove_tree(const std::filesystem::path& path) noexcept override { local_directories().remove_tree(path); }
  void remove_empty(const std::filesystem::path& path) noexcept override { local_directories().remove_empty(path); }
  RenameResult rename(const std::filesystem::path& from, const std::filesystem::path& to, RenameMode mode) override {
    before("rename", to);
    if (mode == RenameMode::kExchange && !exchanges) return RenameResult::kUnsupported;
    return local_directories().rename(from, to, mode);
  }
  std::unique_ptr<DirectoryClaim> claim(const std::filesystem::path& directory, bool shared) override {
    before("claim", directory);
    return local_directories().claim(directory, shared);
  }
  std::unique_ptr<FileLock> lock(const std::filesystem::path& file, bool shared) override {
    return local_directories().lock(file, shared);
  }
  std::unique_ptr<OpenDirectories> open(const std::set<std::filesystem::path>& directories,
                                        const std::filesystem::path& inside) override {
    before("open", inside);
    return std::make_unique<Opened>(*this, local_directories().open(directories, inside), inside);
  }

 private:
  struct Opened final : OpenDirectories {
    Opened(TestDirectories& owner, std::unique_ptr<OpenDirectories> directories, std::filesystem::path path)
        : test(owner), opened(std::move(directories)), inside(std::move(path)) {}
    void flush() override {
      test.before("flush", inside);
      opened->flush();
    }
    TestDirectories& test;
    std::unique_ptr<OpenDirectories> opened;
    std::filesystem::path inside;
  };
};

/// The local file system with directories of one's own.
struct TestStorage {
  TestDirectories directories;
  FaultStorage storage;

  explicit TestStorage(bool exchanges = true) {
    directories.exchanges = exchanges;
    storage.own_directories = &directories;
  }
};

}  // namespace reshard::test
