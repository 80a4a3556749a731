#include "reshard/io/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace reshard {

void for_each_number(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work) {
  const std::size_t rows = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(count, 1));
  const std::size_t per_row = (count + rows - 1) / rows;
  std::atomic<std::size_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t i; (i = next++) < rows * per_row;)
        if (const std::size_t number = i % rows * per_row + i / rows; number < count) work(number);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = rows * per_row;
    }
  };
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < rows; ++i) others.emplace_back(run);
  } catch (const std::exception&) {
    // No more threads, or no memory for their stacks, are available: the existing threads do all the work.
  }
  run();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace reshard
