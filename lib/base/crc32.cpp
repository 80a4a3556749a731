#include "reshard/base/crc32.h"

#include <zlib.h>

namespace reshard {

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t crc32_contribution(std::uint32_t crc, std::uint64_t bytes_after) {
  return static_cast<std::uint32_t>(::crc32_combine(crc, 0, static_cast<z_off_t>(bytes_after)));
}

}  // namespace reshard
