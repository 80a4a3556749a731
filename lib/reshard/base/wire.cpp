#include "reshard/base/wire.h"

#include "reshard/base/error.h"

namespace reshard {

void WireWriter::add_bits(std::uint64_t bits) {
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
}

void WireReader::fail(const char* why) {
  throw Error(ErrorKind::kBadInput, why);
}

std::string_view WireReader::raw(std::uint64_t size_bytes) {
  if (size_bytes > rest_.size()) fail("ends too early");
  const std::string_view bytes = rest_.substr(0, size_bytes);
  rest_.remove_prefix(size_bytes);
  return bytes;
}

std::uint64_t WireReader::number() {
  std::uint64_t bits = 0;
  const std::string_view bytes = raw(8);
  for (std::size_t i = 0; i < 8; ++i) bits |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return bits;
}

}  // namespace reshard
