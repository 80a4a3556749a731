#pragma once

#include <cstdint>

namespace reshard {

/// One of `count` shares of a program, of about equal cost: a unit of it (units.h). The default is the whole program.
struct Share {
  std::uint32_t index = 0;  // less than count
  std::uint32_t count = 1;

  friend bool operator==(const Share&, const Share&) = default;
};

}  // namespace reshard
