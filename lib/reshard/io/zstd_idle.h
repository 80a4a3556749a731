#pragma once

#include <cstddef>

namespace reshard {

/// The memory of all decoders together that wait for the next read of their frame (open_zstd). Those that read have
/// their windows beside it.
inline constexpr std::size_t kMaxIdleZstdBytes = std::size_t{64} << 20;

/// What they have now. Safe from any thread.
std::size_t idle_zstd_bytes();

}  // namespace reshard
