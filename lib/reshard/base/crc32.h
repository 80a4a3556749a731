#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reshard {

/// CRC-32 as zip files have it (polynomial 0xEDB88320); 0 for no bytes. `before` is that of the bytes before these.
/// About as fast as memory is read.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// What a part whose CRC is `crc` adds to the CRC of the whole, where `bytes_after` bytes follow it: the CRC of a
/// sequence is the exclusive or of this over its parts, in any order. `bytes_after` is less than 2^63. Takes about a
/// microsecond.
std::uint32_t crc32_contribution(std::uint32_t crc, std::uint64_t bytes_after);

}  // namespace reshard
