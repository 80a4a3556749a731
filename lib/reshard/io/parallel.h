#pragma once

#include <cstddef>
#include <functional>

namespace reshard {

/// Calls `work` with each number below `count`, on at most `threads` threads including the calling one, or fewer if no
/// more are available. Splits the numbers into as many rows as threads and takes one number from each row in turn.
/// Numbers that are processed at the same time are then mostly far apart: neighbours often need the same lock, like
/// files of one directory. Returns when all calls are done; starts no more calls after a failure.
/// \throws the exception of the first call that failed.
void for_each_number(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

}  // namespace reshard
