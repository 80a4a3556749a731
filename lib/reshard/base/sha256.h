#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace reshard {

using Sha256Digest = std::array<std::byte, 32>;

/// SHA-256 (FIPS 180-4), by OpenSSL.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);
  /// The digest of what was given since the last call; the next one begins anew.
  Sha256Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);

/// 64 hexadecimal digits, in small letters.
std::string to_hex(const Sha256Digest& digest);
/// Of 64 hexadecimal digits; nothing otherwise.
std::optional<Sha256Digest> sha256_of_hex(std::string_view hex);

}  // namespace reshard
