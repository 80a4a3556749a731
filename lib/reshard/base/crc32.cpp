#include "reshard/base/crc32.h"

#include <isa-l/crc.h>

#include <array>

namespace reshard {
namespace {

// A CRC is a polynomial over GF(2) modulo P. The highest bit of the integer is the coefficient of 1, the lowest that of
// x to the 31st; P's own x to the 32nd is left out.
constexpr std::uint32_t kPolynomial = 0xEDB88320;
constexpr std::uint32_t kX = 0x40000000;

constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  // `a` loses its coefficients, that of 1 first, while b is multiplied by x; masks, as branches would be guessed wrong.
  for (; a != 0; a <<= 1) {
    sum ^= b & (0u - (a >> 31));
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1)));
  }
  return sum;
}

/// Element k is x to the power of 2 to the k. There are no more: x to the power of 2 to the 32nd is x again, as the
/// nonzero remainders modulo P are 2 to the 32nd less one.
constexpr auto kPowers = [] {
  std::array<std::uint32_t, 32> powers{kX};
  for (std::size_t k = 1; k < powers.size(); ++k) powers[k] = product(powers[k - 1], powers[k - 1]);
  return powers;
}();
static_assert(product(kPowers.back(), kPowers.back()) == kPowers.front());

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return ::crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t crc32_contribution(std::uint32_t crc, std::uint64_t bytes_after) {
  // A byte that follows multiplies by x to the 8th: bit k of their number is bit k + 3 of the exponent.
  for (std::size_t k = 3; bytes_after != 0; ++k, bytes_after >>= 1)
    if (bytes_after & 1) crc = product(kPowers[k % kPowers.size()], crc);
  return crc;
}

}  // namespace reshard
