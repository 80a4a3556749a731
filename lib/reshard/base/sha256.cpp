#include "reshard/base/sha256.h"

#include <openssl/evp.h>

#include "reshard/base/error.h"

namespace reshard {
namespace {

const EVP_MD* algorithm() {
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);  // cached: the lookup is slow
  return kSha256;
}

void check(int result) {
  if (result != 1) throw Error(ErrorKind::kInternal, "OpenSSL has no SHA-256");
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();

  Context() { check(evp != nullptr && EVP_DigestInit_ex(evp, algorithm(), nullptr)); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()));
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  check(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  check(EVP_DigestInit_ex(context_->evp, algorithm(), nullptr));
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
