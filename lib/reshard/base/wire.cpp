#include "reshard/base/wire.h"

#include <bit>

#include "reshard/base/error.h"

namespace reshard {

void WireWriter::add_bits(std::uint64_t bits) {
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
}

void WireWriter::add(double number) {
  add_bits(std::bit_cast<std::uint64_t>(number));
}

void WireWriter::add(std::string_view text) {
  add_bits(text.size());
  bytes_ += text;
}

std::string_view WireReader::raw(std::uint64_t size_bytes) {
  if (size_bytes > rest_.size()) throw Error(ErrorKind::kBadInput, "ends too early");
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

double WireReader::real() {
  return std::bit_cast<double>(number());
}

std::string_view WireReader::text() {
  return raw(number());
}

std::uint64_t WireReader::count(std::uint64_t least_bytes) {
  const std::uint64_t items = number();
  if (items > rest_.size() / least_bytes) throw Error(ErrorKind::kBadInput, "ends too early");
  return items;
}

}  // namespace reshard
