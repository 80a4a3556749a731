#include "reshard/layouts/contents/recorded_checksums.h"

#include <string_view>

#include "reshard/formats/common/magic.h"
#include "reshard/formats/zip/zip.h"

namespace reshard {
namespace {

constexpr std::string_view kZipMagic = "PK\3\4";

/// A source that contains a range of another source.
class RangeSource final : public Source {
 public:
  RangeSource(const Source& file, SourceFile::Archive range) : file_(file), range_(range) {}
  std::uint64_t size_bytes() const override { return range_.size_bytes; }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    file_.read_at(range_.offset_bytes + offset_bytes, out);
  }

 private:
  const Source& file_;
  SourceFile::Archive range_;
};

}  // namespace

std::optional<std::vector<ChecksummedRange>> recorded_checksums(Files& files, const SourceFile& file) {
  if (file.frame) return std::nullopt;
  const auto source = files.open(file.path);
  std::vector<SourceFile::Archive> archives = file.archives;
  if (archives.empty()) {
    if (source->size_bytes() < kZipMagic.size() || first_bytes(*source, kZipMagic.size()) != kZipMagic)
      return std::nullopt;
    archives.push_back({0, source->size_bytes()});
  }
  std::vector<ChecksummedRange> ranges;
  for (const SourceFile::Archive& archive : archives) {
    const RangeSource range(*source, archive);
    const ZipDirectory zip = read_zip(range, file.path);
    for (const ZipEntry& entry : zip.entries()) {
      if (entry.size_bytes == 0) continue;
      if (entry.compressed || entry.crc32 == 0) return std::nullopt;
      ranges.push_back({archive.offset_bytes + entry.offset_bytes, entry.size_bytes, entry.crc32});
    }
  }
  return ranges;
}

}  // namespace reshard
