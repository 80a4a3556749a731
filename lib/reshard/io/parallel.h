#pragma once

#include <cstddef>
#include <functional>

namespace reshard {

/// Calls `work` with each number below `count` on at most `threads` threads: fewer where no more are to be had, and
/// this one among them. Numbers come in as many rows as there are threads, one of each row in turn, so that those
/// worked on at the same time mostly lie far apart: neighbours often need the same lock, as files of one directory do.
/// Returns when all are done; after a failure no more are begun.
/// \throws what the first work that failed threw.
void for_each_number(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

}  // namespace reshard
