#include "reshard/io/files.h"

namespace reshard {

std::unique_ptr<MappedRange> Source::map(std::uint64_t, std::uint64_t) const {
  return nullptr;
}

std::optional<std::int64_t> Files::modified_ns(const std::filesystem::path&) {
  return std::nullopt;
}

std::uint64_t Files::size_bytes(const std::filesystem::path& path) {
  return open(path)->size_bytes();
}

bool Files::is_same(const std::filesystem::path& a, const std::filesystem::path& b) {
  try {
    return exists(a) && exists(b) && resolve(a) == resolve(b);
  } catch (const Error&) {
    return false;
  }
}

bool Files::exists(const std::filesystem::path& path) {
  const FileKind found = kind_of(path);
  return found != FileKind::kNone && found != FileKind::kBrokenLink;
}

}  // namespace reshard
