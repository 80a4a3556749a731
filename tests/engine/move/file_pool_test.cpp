#include "reshard/engine/move/file_pool.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
namespace {

/// Counts how many of its kind there are.
struct Handle {
  explicit Handle(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { --alive_; }
  std::atomic<int>& alive_;
};

class Opener {
 public:
  std::shared_ptr<Handle> get(std::uint32_t id) {
    return pool.get(id, [&] {
      ++opened;
      return std::make_unique<Handle>(alive);
    });
  }
  std::atomic<int> alive{0};
  std::atomic<int> opened{0};
  FilePool<Handle> pool{2};
};

TEST_CASE("A file that is open is given again, and the one used last stays when room is needed") {
  Opener opener;
  opener.get(1);
  opener.get(2);
  opener.get(1);
  CHECK(opener.opened == 2);
  opener.get(3);  // pushes out 2
  CHECK(opener.alive == 2);
  opener.get(1);
  CHECK(opener.opened == 3);
  opener.get(2);
  CHECK(opener.opened == 4);
  CHECK(opener.alive == 2);
}

TEST_CASE("A file in use outlives its place in the pool") {
  Opener opener;
  const auto held = opener.get(1);
  opener.get(2);
  opener.get(3);
  CHECK(opener.alive == 3);
  CHECK(held.use_count() == 1);
}

TEST_CASE("A file that cannot be opened leaves the pool as it was") {
  Opener opener;
  opener.get(1);
  const auto fail = []() -> std::unique_ptr<Handle> { throw std::runtime_error("no"); };
  CHECK_THROWS_AS(opener.pool.get(2, fail), std::runtime_error);
  opener.get(2);
  CHECK(opener.opened == 2);
  CHECK(opener.alive == 2);
}

TEST_CASE("Each file has its last word once, when its last user lets go") {
  std::vector<int> said;
  std::vector<int> closed;
  struct Speaker {
    Speaker(int number, std::vector<int>& closed) : number_(number), closed_(closed) {}
    Speaker(const Speaker&) = delete;
    Speaker& operator=(const Speaker&) = delete;
    ~Speaker() { closed_.push_back(number_); }
    int number_;
    std::vector<int>& closed_;
  };
  FilePool<Speaker> pool(1, [&](Speaker& speaker) {
    CHECK(std::count(closed.begin(), closed.end(), speaker.number_) == 0);
    said.push_back(speaker.number_);
  });
  const auto get = [&](int number) {
    return pool.get(static_cast<std::uint32_t>(number), [&] { return std::make_unique<Speaker>(number, closed); });
  };
  auto held = get(1);
  get(2);  // pushes out 1, which is in use
  CHECK(said.empty());
  get(3);
  CHECK(said == std::vector<int>{2});
  held.reset();
  CHECK(said == std::vector<int>{2, 1});
  pool.clear();
  CHECK(said == std::vector<int>{2, 1, 3});
  CHECK(closed == said);
}

TEST_CASE("Threads that share a pool hold no more files than capacity and users") {
  constexpr std::uint32_t kThreads = 4;
  constexpr int kCapacity = 2;
  Opener opener;
  std::atomic<int> most{0};
  std::barrier together(kThreads);
  int all_held = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 500; ++i) {
        const auto held = opener.get((i * 7 + t) % 9);
        int seen = most;
        while (opener.alive > seen && !most.compare_exchange_weak(seen, opener.alive)) continue;
      }
      together.arrive_and_wait();
      const auto held = opener.get(100 + t);
      together.arrive_and_wait();
      if (t == 0) all_held = opener.alive;
      together.arrive_and_wait();  // nobody lets go before that
    });
  for (std::thread& thread : threads) thread.join();
  // A thread has at most the file that it uses and, for a moment, the one that it has pushed out and closes.
  CHECK(most <= kCapacity + 2 * static_cast<int>(kThreads));
  CHECK(all_held == static_cast<int>(kThreads));  // two of which are the pool's
  CHECK(opener.alive == kCapacity);
}

}  // namespace
}  // namespace reshard::test
