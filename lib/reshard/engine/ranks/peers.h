#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/error.h"

namespace reshard {

/// Processes, mostly on several machines, that run one job together on files that all of them can access. Used by one
/// thread per process.
class Peers {
 public:
  virtual ~Peers() = default;

  virtual std::uint32_t rank() const = 0;  // of this process, from 0; rank 0 leads
  virtual std::uint32_t size() const = 0;  // number of ranks, at least 1

  /// Returns each rank's string, by rank; the same on all ranks. A collective call: every rank must call it equally
  /// often, and calls are matched by order. Waits without busy-polling.
  /// \throws RankLost if another rank did not call it in time; the ranks are unusable afterwards.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
};

/// Another rank does not answer: its process was killed, or its machine failed.
class RankLost : public Error {
 public:
  explicit RankLost(std::string message) : Error(ErrorKind::kLost, std::move(message)) {}
};

}  // namespace reshard
