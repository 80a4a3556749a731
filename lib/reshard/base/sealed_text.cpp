#include "reshard/base/sealed_text.h"

#include <span>

#include "reshard/base/sha256.h"

namespace reshard {
namespace {

constexpr std::size_t kDigestDigits = 64;

std::string digest_text(std::string_view text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

}  // namespace

std::string sealed(std::string_view first_line, std::string_view body) {
  std::string text(first_line);
  text += body;
  const std::string digest = digest_text(text);
  return text + digest;
}

std::optional<std::string_view> unsealed(std::string_view text) {
  if (text.size() < kDigestDigits) return std::nullopt;
  const std::string_view sealed = text.substr(0, text.size() - kDigestDigits);
  if (digest_text(sealed) != text.substr(sealed.size())) return std::nullopt;
  return sealed;
}

std::optional<std::string_view> unsealed(std::string_view first_line, std::string_view text) {
  const auto sealed = unsealed(text);
  if (!sealed || !sealed->starts_with(first_line)) return std::nullopt;
  return sealed->substr(first_line.size());
}

}  // namespace reshard
