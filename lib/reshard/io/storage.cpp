#include "reshard/io/storage.h"

namespace reshard {

void Sink::write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts) {
  for (const std::span<const std::byte> part : parts) {
    write_at(offset_bytes, part);
    offset_bytes += part.size();
  }
}

bool Sink::copy_pays(const Source&, std::uint64_t, std::uint64_t) const {
  return false;
}

bool Sink::copy_from(const Source&, std::uint64_t, std::uint64_t, std::uint64_t) {
  return false;
}

void Sink::start_writeback(std::uint64_t, std::uint64_t) {}

void Sink::wait_for_writeback(std::uint64_t, std::uint64_t) {}

}  // namespace reshard
