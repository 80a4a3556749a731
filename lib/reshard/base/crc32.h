#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reshard {

/// CRC-32 as used in zip files (polynomial 0xEDB88320); 0 for no bytes. `before` is the CRC of the preceding bytes.
/// Runs at about memory bandwidth.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// Contribution of a part to the CRC of a sequence: `crc` is the CRC of the part, and `bytes_after` (less than 2^63)
/// bytes follow it. The CRC of the sequence is the exclusive or of all contributions, in any order. Takes about a
/// microsecond.
std::uint32_t crc32_contribution(std::uint32_t crc, std::uint64_t bytes_after);

}  // namespace reshard
