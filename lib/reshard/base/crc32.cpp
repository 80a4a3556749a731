#include "reshard/base/crc32.h"

#include <libdeflate.h>
#include <zlib.h>

#include <cassert>

namespace reshard {

static_assert(sizeof(z_off_t) == sizeof(std::uint64_t), "zlib must count the bytes of large files");

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  if (bytes.empty()) return before;  // libdeflate returns 0 for a null pointer
  return ::libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::uint32_t crc32_contribution(std::uint32_t crc, std::uint64_t bytes_after) {
  assert(bytes_after >> 63 == 0);
  // Treats the following bytes as if their CRC were 0: the other parts add their own contributions.
  return static_cast<std::uint32_t>(::crc32_combine(crc, 0, static_cast<z_off_t>(bytes_after)));
}

}  // namespace reshard
