#include "reshard/base/crc32.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.h"

using namespace reshard;

namespace {

std::uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

/// Bit by bit, as the polynomial says.
std::uint32_t slow_crc(std::string_view text) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

std::string random_text(std::mt19937_64& random, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace

TEST_CASE("The CRC of known texts is the known one") {
  const std::pair<std::string, std::uint32_t> known[] = {{"", 0},
                                                         {"123456789", 0xCBF43926},
                                                         {"a", 0xE8B7BE43},
                                                         {"The quick brown fox jumps over the lazy dog", 0x414FA339},
                                                         {std::string(32, '\0'), 0x190A55AD},
                                                         {std::string(32, '\xFF'), 0xFF6CAB0B}};
  for (const auto& [text, crc] : known) {
    CHECK(crc_of(text) == crc);
    // A CRC goes on from that of the bytes before.
    for (std::size_t cut = 0; cut <= text.size(); ++cut)
      CHECK(crc32(std::as_bytes(std::span(text)).subspan(cut), crc_of(text.substr(0, cut))) == crc);
  }
}

TEST_CASE("The CRC of texts of every length and place in memory is that of the polynomial") {
  std::mt19937_64 random(1);
  const std::string text = random_text(random, 300);
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t size = 0; begin + size <= text.size(); size += 1 + size / 40)
      CHECK(crc_of(std::string_view(text).substr(begin, size)) == slow_crc(text.substr(begin, size)));
}

TEST_CASE("The CRC of long texts at any place in memory is that of the polynomial") {
  std::mt19937_64 random(2);
  const std::string text = random_text(random, 70000);
  for (int trial = 0; trial < 100; ++trial) {
    const std::size_t begin = random() % 130;
    const std::size_t size = random() % (std::size_t{1} << (9 + trial % 8));
    INFO(size << " bytes from " << begin);
    REQUIRE(crc_of(std::string_view(text).substr(begin, size)) == slow_crc(std::string_view(text).substr(begin, size)));
  }
}

TEST_CASE("The contributions of the parts of a text, in any order, make its CRC") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const std::string text = random_text(random, random() % 3000);
    std::vector<std::uint32_t> contributions;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t size = std::min<std::size_t>(text.size() - begin, random() % 400);  // empty parts, too
      contributions.push_back(
          crc32_contribution(crc_of(std::string_view(text).substr(begin, size)), text.size() - begin - size));
      begin += size;
    }
    std::shuffle(contributions.begin(), contributions.end(), random);
    std::uint32_t sum = 0;
    for (const std::uint32_t contribution : contributions) sum ^= contribution;
    CHECK(sum == slow_crc(text));
  }
}

TEST_CASE("Contributions are those of zlib's crc32_combine: of an empty part nothing, and of the last its own CRC") {
  CHECK(crc32_contribution(0xCBF43926, 0) == 0xCBF43926);
  for (const std::uint64_t after : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 40})
    CHECK(crc32_contribution(crc_of(""), after) == 0);
  CHECK(crc32_contribution(0xCBF43926, 1) == 0xD2C671C4);
  CHECK(crc32_contribution(0xCBF43926, std::uint64_t{1} << 40) == 0x34F80776);
  CHECK(crc32_contribution(1, (std::uint64_t{1} << 40) + 12345) == 0xC2AEAAE8);
}

TEST_CASE("Contributions over many gigabytes are those of as many single steps") {
  // To have a bytes after it and then b more is to have a + b after it.
  std::mt19937_64 random(7);
  for (const std::uint64_t after : {std::uint64_t{1} << 31, (std::uint64_t{1} << 32) - 1, std::uint64_t{1} << 32,
                                    (std::uint64_t{1} << 40) + 12345}) {
    const std::uint64_t first = random() % after;
    const std::uint32_t stepwise = crc32_contribution(crc32_contribution(0xCBF43926, first), after - first);
    CHECK(crc32_contribution(0xCBF43926, after) == stepwise);
  }
}

TEST_CASE("The CRC of four gibibytes of zeros, put together by doubling, is the known one") {
  std::uint32_t zeros = slow_crc(std::string(1024, '\0'));
  std::uint64_t bytes = 1024;
  while (bytes < std::uint64_t{1} << 32) {
    zeros = crc32_contribution(zeros, bytes) ^ zeros;
    bytes *= 2;
  }
  CHECK(zeros == 0xD202EF8D);
}
