#include "reshard/engine/move/buffer.h"

namespace reshard {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSlackBytes = 2 * kLineBytes;

}  // namespace

std::uint64_t bytes_to_line_up(const std::byte* address, std::uint64_t file_offset_bytes) {
  return (file_offset_bytes - reinterpret_cast<std::uintptr_t>(address)) % kLineBytes;
}

std::span<std::byte> Buffer::make_room(std::uint64_t bytes, const FilePlaces& places) {
  if (capacity_ < bytes + kSlackBytes) {
    memory_.reset();
    capacity_ = 0;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kSlackBytes);
    capacity_ = bytes + kSlackBytes;
  }
  begin_ = 0;
  size_ = bytes;
  if (const auto like = places.written_to_bytes ? places.written_to_bytes : places.read_from_bytes)
    begin_ = bytes_to_line_up(memory_.get(), *like);
  if (places.read_from_bytes) {
    const std::uint64_t after = (reinterpret_cast<std::uintptr_t>(data()) - *places.read_from_bytes) % kPageBytes;
    if (after > 0 && after < kLineBytes) begin_ += kLineBytes;
  }
  return this->bytes();
}

}  // namespace reshard
