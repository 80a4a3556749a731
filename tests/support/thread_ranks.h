#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/ranks/together.h"

namespace reshard::test {

/// Ranks that are threads of this process.
class ThreadWorld {
 public:
  /// `limit`: how long gather waits for the others.
  explicit ThreadWorld(std::uint32_t size, std::chrono::milliseconds limit = std::chrono::seconds(60))
      : size_(size), limit_(limit), given_(size) {}

  std::uint32_t size() const { return size_; }
  /// \throws RankLost.
  std::vector<std::string> gather(std::uint32_t rank, const std::string& mine);

 private:
  std::uint32_t size_;
  std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_;
  std::uint32_t present_ = 0;
  std::uint64_t round_ = 0;
  std::vector<std::string> all_;  // of the last round
};

class ThreadRanks final : public Peers {
 public:
  /// Borrowed.
  ThreadRanks(ThreadWorld& world, std::uint32_t rank) : world_(world), rank_(rank) {}
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return world_.size(); }
  std::vector<std::string> gather(const std::string& mine) override { return world_.gather(rank_, mine); }

 private:
  ThreadWorld& world_;
  std::uint32_t rank_;
};

/// Runs `work` on `size` ranks, on machines n0, n0, n1, n1, …, and ends as the program does: what fails outside of a step
/// fails on all ranks.
/// \returns what each rank threw.
std::vector<std::optional<Error>> run_ranks(std::uint32_t size, const std::function<void(Together&)>& work,
                                            std::chrono::milliseconds limit = std::chrono::seconds(60));

void check_none_threw(const std::vector<std::optional<Error>>& thrown);
/// What all ranks threw, which has to be one error.
Error agreed_error(const std::vector<std::optional<Error>>& thrown);

/// Thrown by a rank that dies: it says nothing to the others.
struct Death {};

}  // namespace reshard::test
