#pragma once

#include <cstddef>

namespace reshard {

/// Total memory limit of idle decoders, which wait for the next read of their frame (open_zstd). Decoders in use need
/// memory for their windows in addition.
inline constexpr std::size_t kMaxIdleZstdBytes = std::size_t{64} << 20;

/// Current memory of idle decoders. Thread-safe.
std::size_t idle_zstd_bytes();

}  // namespace reshard
