#include "reshard/base/sha256.h"

// The plain functions are deprecated in favour of EVP, which reads openssl.cnf and loads modules: a static program must
// not depend on those of the machine where it runs.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

namespace reshard {

struct Sha256::Context {
  SHA256_CTX state;

  Context() { ::SHA256_Init(&state); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  ::SHA256_Update(&context_->state, bytes.data(), bytes.size());
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  ::SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &context_->state);
  ::SHA256_Init(&context_->state);
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string to_hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const std::byte byte : digest) {
    hex += kDigits[std::to_integer<unsigned>(byte) >> 4];
    hex += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return hex;
}

std::optional<Sha256Digest> sha256_of_hex(std::string_view hex) {
  Sha256Digest digest;
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int value = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (value < 0) return std::nullopt;
    digest[i / 2] = i % 2 == 0 ? static_cast<std::byte>(value << 4) : digest[i / 2] | static_cast<std::byte>(value);
  }
  return digest;
}

}  // namespace reshard
