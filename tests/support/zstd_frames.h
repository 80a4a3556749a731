#pragma once

#include <algorithm>
#include <string>

namespace reshard::test {

/// A zstd frame (RFC 8878) of raw blocks that decodes to `content`, written by hand. Its window is 2^`window_log`
/// bytes.
inline std::string zstd_frame(const std::string& content, int window_log = 20) {
  constexpr std::size_t kBlockBytes = 100'000;
  std::string frame("\x28\xb5\x2f\xfd\x00", 5);
  frame += static_cast<char>((window_log - 10) << 3);
  std::size_t at = 0;
  do {
    const std::size_t size = std::min(kBlockBytes, content.size() - at);
    const std::size_t header = (at + size == content.size() ? 1 : 0) | size << 3;
    for (int byte = 0; byte < 3; ++byte) frame += static_cast<char>(header >> 8 * byte);
    frame += content.substr(at, size);
    at += size;
  } while (at < content.size());
  return frame;
}

/// One that decodes to `blocks` times 100,000 zeros.
inline std::string zstd_bomb(std::size_t blocks) {
  std::string frame("\x28\xb5\x2f\xfd\x00\x50", 6);
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t header = (i + 1 == blocks ? 1 : 0) | 1 << 1 | std::size_t{100'000} << 3;
    for (int byte = 0; byte < 3; ++byte) frame += static_cast<char>(header >> 8 * byte);
    frame += '\0';
  }
  return frame;
}

}  // namespace reshard::test
