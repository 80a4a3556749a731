#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace reshard {

static_assert(std::endian::native == std::endian::little, "numbers of files are read in place");

/// Loads the number at byte `at` of `bytes`, which must be large enough.
template <typename Number>
Number load_le(std::string_view bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace reshard
