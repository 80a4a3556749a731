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

/// SHA-256 (FIPS 180-4), computed by OpenSSL.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);
  /// Returns the digest of the bytes since the last finish(), and resets the state.
  Sha256Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);

/// 64 lowercase hexadecimal digits.
std::string to_hex(const Sha256Digest& digest);
/// Parses 64 hexadecimal digits; std::nullopt for any other text.
std::optional<Sha256Digest> sha256_of_hex(std::string_view hex);

}  // namespace reshard
