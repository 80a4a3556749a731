#include "reshard/io/files.h"

namespace reshard {

std::unique_ptr<MappedRange> Source::map(std::uint64_t, std::uint64_t) const {
  return nullptr;
}

bool Files::exists(const std::filesystem::path& path) {
  const FileKind found = kind_of(path);
  return found != FileKind::kNone && found != FileKind::kBrokenLink;
}

}  // namespace reshard
