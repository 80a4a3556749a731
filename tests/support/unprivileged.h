#pragma once

#include <filesystem>

namespace reshard::test {

/// While one exists, permissions bind: tests that run as root, whom they do not bind, go on as nobody. The directory
/// and all in it become nobody's. The process has one identity, so at most one at a time, and no other threads.
class Unprivileged {
 public:
  explicit Unprivileged(const std::filesystem::path& directory);
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;
  ~Unprivileged();

 private:
  bool was_root_;
};

}  // namespace reshard::test
