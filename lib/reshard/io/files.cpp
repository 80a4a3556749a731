#include "reshard/io/files.h"

#include <algorithm>

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

bool same_content(Files& files_of_a, const std::filesystem::path& a, Files& files_of_b,
                  const std::filesystem::path& b) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
  const auto first = files_of_a.open(a), second = files_of_b.open(b);
  if (first->size_bytes() != second->size_bytes()) return false;
  std::vector<std::byte> of_a(std::min(kAtOnce, first->size_bytes())), of_b(of_a.size());
  for (std::uint64_t at = 0; at < first->size_bytes(); at += of_a.size()) {
    const auto count = std::min<std::uint64_t>(of_a.size(), first->size_bytes() - at);
    first->read_at(at, std::span(of_a).first(count));
    second->read_at(at, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin())) return false;
  }
  return true;
}

}  // namespace reshard
