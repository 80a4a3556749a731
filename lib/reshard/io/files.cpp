#include "reshard/io/files.h"

namespace reshard {

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

std::filesystem::path directory_above(Files& files, const std::filesystem::path& path) {
  const std::filesystem::path full = files.absolute(path).lexically_normal();
  return full.filename().empty() ? full.parent_path().parent_path() : full.parent_path();
}

std::string own_name(Files& files, const std::filesystem::path& path) {
  return files.absolute(path / "").lexically_normal().parent_path().filename().string();
}

}  // namespace reshard
