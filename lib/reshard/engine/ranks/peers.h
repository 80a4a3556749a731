#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/error.h"

namespace reshard {

/// Processes, mostly on several machines, that run one job together over files that all of them see. Only one thread of
/// each uses it.
class Peers {
 public:
  virtual ~Peers() = default;

  virtual std::uint32_t rank() const = 0;  // of this process, from 0; rank 0 leads
  virtual std::uint32_t size() const = 0;  // how many there are, 1 or more

  /// What each rank gave, by rank: the same on all of them. Every rank has to call it, as often as the others; the
  /// calls belong together by their order. Waits for the others without burning a core.
  /// \throws RankLost if another rank did not come in time; after that the ranks cannot be used any more.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
};

/// Another rank does not answer: its process was killed, or its machine is gone.
class RankLost : public Error {
 public:
  explicit RankLost(std::string message) : Error(ErrorKind::kLost, std::move(message)) {}
};

}  // namespace reshard
