#include "reshard/base/wire.h"

#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

struct Inner {
  std::uint32_t number = 0;
  std::array<std::byte, 2> raw{};

  static auto fields(auto& self) { return std::tie(self.number, self.raw); }
};

struct Outer {
  bool flag = false;
  double real = 0;
  std::string text;
  std::vector<Inner> list;
  std::map<std::string, std::string> map;
  std::optional<std::uint64_t> maybe;
  std::filesystem::path path;

  static auto fields(auto& self) {
    return std::tie(self.flag, self.real, self.text, self.list, self.map, self.maybe, self.path);
  }
};

TEST_CASE("A record is its fields one after another, and is read as it was written") {
  const Outer outer{true, 0.5, "ab", {{7, {std::byte{1}, std::byte{2}}}, {}}, {{"k", "v"}}, 9, "a/b"};
  const std::string bytes = wire_bytes(outer);
  const std::string number(7, '\0');
  const auto little = [&](char low) { return low + number; };
  CHECK(bytes == little(1) + std::string("\0\0\0\0\0\0\xe0\x3f", 8) + little(2) + "ab" + little(2) + little(7) +
                     "\x01\x02" + little(0) + std::string(2, '\0') + little(1) + little(1) + "k" + little(1) + "v" +
                     little(1) + little(9) + little(3) + "a/b");
  WireReader reader(bytes);
  const auto read = reader.read<Outer>();
  CHECK(reader.at_end());
  CHECK(wire_bytes(read) == bytes);
  CHECK(read.map == outer.map);
  CHECK_FALSE(WireReader(wire_bytes(Outer())).read<Outer>().maybe.has_value());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK(error_of([&] { WireReader(bytes.substr(0, size)).read<Outer>(); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("A list that has no room for its items is refused before it takes memory, and so is too large a number") {
  STATIC_REQUIRE(least_wire_bytes<Inner>() == 10);
  STATIC_REQUIRE(least_wire_bytes<Outer>() == 56);
  const std::string bytes = wire_bytes(std::uint64_t{1} << 60, 0, 0);
  CHECK(error_of([&] { WireReader(bytes).read<std::vector<Inner>>(); }).kind() == ErrorKind::kBadInput);
  CHECK(error_of([&] { WireReader(bytes).read<std::uint32_t>(); }).kind() == ErrorKind::kBadInput);
  CHECK(WireReader(bytes).read<std::uint64_t>() == std::uint64_t{1} << 60);
}

}  // namespace
}  // namespace reshard::test
