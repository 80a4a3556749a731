#include "reshard/engine/move/buffer.h"

#include <cstring>
#include <random>

#include "support/catch.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

std::uint64_t address(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

}  // namespace

TEST_CASE("A buffer begins where the kernel copies fast from and to its files") {
  Buffer buffer;
  for (const std::uint64_t seed : seeds(500)) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    FilePlaces places;
    if (random() % 3 != 0) places.read_from_bytes = random();
    if (random() % 3 != 0) places.written_to_bytes = random();
    const std::uint64_t bytes = random() % 20000;
    const auto room = buffer.make_room(bytes, places);
    REQUIRE(room.size() == bytes);
    REQUIRE(room.data() == buffer.data());
    std::memset(room.data(), 1, room.size());  // all of it is there, as sanitizers see
    if (places.written_to_bytes) {
      CHECK((address(buffer) - *places.written_to_bytes) % kLineBytes == 0);
    }
    if (places.read_from_bytes) {
      const std::uint64_t after = (address(buffer) - *places.read_from_bytes) % 4096;
      CHECK((after == 0 || after >= kLineBytes));
    }
  }
}

TEST_CASE("A buffer that was long enough stays where it is") {
  Buffer buffer;
  buffer.make_room(100000);
  const std::byte* const before = buffer.data();
  buffer.make_room(10);
  CHECK(buffer.size() == 10);
  buffer.make_room(100000);
  CHECK(buffer.data() == before);
  CHECK(buffer.bytes().size() == 100000);
}

}  // namespace reshard::test
