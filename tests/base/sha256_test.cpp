#include "reshard/base/sha256.h"

#include <string>

#include "support/catch.h"

namespace reshard::test {
namespace {

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("SHA-256 is that of FIPS 180-4, whole and in parts") {
  CHECK(to_hex(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(to_hex(sha256(bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  const std::string million(1000, 'a');
  for (int i = 0; i < 1000; ++i) hash.update(bytes(million));
  CHECK(to_hex(hash.finish()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  hash.update(bytes("a"));
  hash.update(bytes("bc"));
  CHECK(hash.finish() == sha256(bytes("abc")));
}

TEST_CASE("A digest is read from 64 hexadecimal digits and nothing else") {
  const Sha256Digest digest = sha256(bytes("abc"));
  std::string hex = to_hex(digest);
  CHECK(sha256_of_hex(hex) == digest);
  std::string capitals = hex;
  for (char& c : capitals)
    if (c >= 'a') c = static_cast<char>(c - 'a' + 'A');
  CHECK(sha256_of_hex(capitals) == digest);
  CHECK_FALSE(sha256_of_hex(hex + "0"));
  CHECK_FALSE(sha256_of_hex(hex.substr(1)));
  hex[10] = 'g';
  CHECK_FALSE(sha256_of_hex(hex));
}

}  // namespace
}  // namespace reshard::test
