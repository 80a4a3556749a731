#include "support/thread_ranks.h"

#include <exception>
#include <thread>

#include "support/catch.h"

namespace reshard::test {

std::vector<std::string> ThreadWorld::gather(std::uint32_t rank, const std::string& mine) {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = round_;
  given_.at(rank) = mine;
  if (++present_ == size_) {
    all_ = given_;
    present_ = 0;
    ++round_;
    changed_.notify_all();
    return all_;
  }
  if (!changed_.wait_for(lock, limit_, [&] { return round_ != round; }))
    throw RankLost("waited for another rank in vain; nothing is published but by rank 0, when all have finished");
  return all_;
}

std::vector<std::optional<Error>> run_ranks(std::uint32_t size, const std::function<void(Together&)>& work,
                                            std::chrono::milliseconds limit) {
  ThreadWorld world(size, limit);
  std::vector<std::optional<Error>> thrown(size);
  const auto run = [&](std::uint32_t rank) {
    ThreadRanks ranks(world, rank);
    Progress progress;
    try {
      Together together(ranks, "n" + std::to_string(rank / 2));
      try {
        work(together);
      } catch (const AgreedError&) {
        throw;
      } catch (const RankLost&) {
        throw;
      } catch (const Death&) {
        return;
      } catch (...) {
        together.fail(std::current_exception());
      }
      together.step("end", progress, [] {});
    } catch (const Error& error) {
      thrown[rank] = error;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (std::uint32_t rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void check_none_threw(const std::vector<std::optional<Error>>& thrown) {
  for (const auto& one : thrown) CHECK((one ? std::string(one->what()) : "") == "");
}

Error agreed_error(const std::vector<std::optional<Error>>& thrown) {
  for (const auto& one : thrown) {
    REQUIRE(one);
    CHECK(one->kind() == thrown[0]->kind());
    CHECK(std::string(one->what()) == thrown[0]->what());
    CHECK(one->hint() == thrown[0]->hint());
  }
  return *thrown[0];
}

}  // namespace reshard::test
