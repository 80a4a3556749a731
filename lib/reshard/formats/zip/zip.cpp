#include "reshard/formats/zip/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/zip/zip_end.h"

namespace reshard {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;

// Sizes without the names, extra fields and comments that follow.
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kCentralBytes = 46;

constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{64} << 20;  // half a million torch storages

constexpr std::uint16_t kDescriptorFlag = 1 << 3;                               // sizes and CRC follow the content
constexpr std::uint16_t kUnreadableFlags = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13;  // encrypted, or a patch
constexpr std::uint16_t kZip64Extra = 1;

/// An entry of the central directory, before its local header was read.
struct CentralEntry {
  std::string_view name;
  std::uint64_t at_byte = 0;  // offset of this record
  std::uint64_t local_offset = 0;
  std::uint64_t size_bytes = 0;      // as stored in the file
  std::uint64_t unpacked_bytes = 0;  // equal to size_bytes unless compressed
  std::uint32_t crc32 = 0;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;  // compression method; 0 is none
};

class ZipReader {
 public:
  ZipReader(const Source& source, const std::filesystem::path& path)
      : source_(source), path_(path), file_bytes_(source.size_bytes()) {}

  std::vector<ZipEntry> read() {
    place_ = find_zip_directory(source_, path_);
    if (place_.size_bytes > kMaxDirectoryBytes)
      throw Error(ErrorKind::kUnsupported, "its zip directory has " + format_bytes(place_.size_bytes) +
                                               ", more than the " + format_bytes(kMaxDirectoryBytes) +
                                               " that are supported")
          .in(path_)
          .at_byte(place_.begin);
    if (place_.entries > place_.size_bytes / kCentralBytes)
      throw bad(fmt::format("its zip directory has {} bytes, too few for the {} entries it claims", place_.size_bytes,
                            place_.entries),
                place_.begin);
    const std::string directory = read_bytes(place_.begin, place_.size_bytes);
    std::vector<ZipEntry> entries;
    entries.reserve(place_.entries);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < place_.entries; ++i) {
      const CentralEntry central = central_entry(directory, at);
      entries.push_back(locate(central));
      ranges.emplace_back(central.local_offset, entries.back().offset_bytes + central.size_bytes);
    }
    if (at != directory.size()) throw bad("its zip directory continues after its last entry", place_.begin + at);
    validate_apart(entries, std::move(ranges));
    return entries;
  }

 private:
  Error bad(std::string message, std::uint64_t at_byte) const {
    return Error(ErrorKind::kBadInput, std::move(message)).in(path_).at_byte(at_byte);
  }

  Error unsupported(std::string message, std::uint64_t at_byte) const {
    return Error(ErrorKind::kUnsupported, std::move(message)).in(path_).at_byte(at_byte);
  }

  /// The range must be inside the file.
  std::string read_bytes(std::uint64_t begin, std::uint64_t size_bytes) const {
    std::string bytes(size_bytes, '\0');
    source_.read_at(begin, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  CentralEntry central_entry(const std::string& directory, std::uint64_t& at) const;
  void take_zip64(std::string_view extra, std::string_view record, CentralEntry& entry) const;
  ZipEntry locate(const CentralEntry& central) const;
  void validate_apart(const std::vector<ZipEntry>& entries,
                      std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) const;

  const Source& source_;
  const std::filesystem::path& path_;
  std::uint64_t file_bytes_;
  ZipPlace place_;
};

/// Reads the record at `at` and advances `at` past it.
CentralEntry ZipReader::central_entry(const std::string& directory, std::uint64_t& at) const {
  const std::uint64_t record_at = place_.begin + at;
  const std::string_view record = std::string_view(directory).substr(at);
  if (record.size() < kCentralBytes || load_le<std::uint32_t>(record, 0) != kCentralSignature)
    throw bad("its zip directory has other data instead of an entry", record_at);
  const std::uint64_t name_bytes = load_le<std::uint16_t>(record, 28);
  const std::uint64_t extra_bytes = load_le<std::uint16_t>(record, 30);
  const std::uint64_t all_bytes = kCentralBytes + name_bytes + extra_bytes + load_le<std::uint16_t>(record, 32);
  if (all_bytes > record.size()) throw bad("an entry of its zip directory exceeds the directory", record_at);
  CentralEntry entry;
  entry.name = record.substr(kCentralBytes, name_bytes);
  entry.at_byte = record_at;
  entry.flags = load_le<std::uint16_t>(record, 8);
  entry.crc32 = load_le<std::uint32_t>(record, 16);
  if (has_control(entry.name))
    throw bad("the zip entry \"" + printable(entry.name) + "\" has a control character in its name", record_at);
  const std::string who = "the zip entry " + printable(entry.name);
  if (entry.name.empty()) throw bad("a zip entry has no name", record_at);
  if ((entry.flags & kUnreadableFlags) != 0) throw unsupported(who + " is encrypted", record_at);
  entry.method = load_le<std::uint16_t>(record, 10);
  const auto disk = load_le<std::uint16_t>(record, 34);
  if (disk != 0 && disk != kIn64_16) throw unsupported(who + " is in another volume of the archive", record_at);
  take_zip64(record.substr(kCentralBytes + name_bytes, extra_bytes), record, entry);
  at += all_bytes;
  return entry;
}

/// Reads sizes and offset from the zip64 extra field if the record refers to it.
void ZipReader::take_zip64(std::string_view extra, std::string_view record, CentralEntry& entry) const {
  std::string_view zip64;
  std::size_t fields = 0;
  while (extra.size() >= 4) {
    const std::size_t size = load_le<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    if (load_le<std::uint16_t>(extra, 0) == kZip64Extra) {
      zip64 = extra.substr(4, size);
      ++fields;
    }
    extra.remove_prefix(4 + size);
  }
  const auto next = [&](std::uint32_t in_record) -> std::uint64_t {
    if (in_record != kIn64_32) return in_record;
    if (fields != 1 || zip64.size() < 8)
      throw bad("the zip entry " + printable(entry.name) + " lacks the zip64 field that it needs, or has two of them",
                entry.at_byte);
    const auto value = load_le<std::uint64_t>(zip64, 0);
    zip64.remove_prefix(8);
    return value;
  };
  entry.unpacked_bytes = next(load_le<std::uint32_t>(record, 24));
  entry.size_bytes = next(load_le<std::uint32_t>(record, 20));
  entry.local_offset = next(load_le<std::uint32_t>(record, 42));
  if (entry.method == 0 && entry.size_bytes != entry.unpacked_bytes)
    throw bad(fmt::format("the zip entry {} is stored, but has {} bytes packed and {} unpacked", printable(entry.name),
                          entry.size_bytes, entry.unpacked_bytes),
              entry.at_byte);
}

ZipEntry ZipReader::locate(const CentralEntry& central) const {
  const std::string who = "the zip entry " + printable(central.name);
  const auto fixed_end = checked_add(central.local_offset, kLocalBytes + central.name.size());
  if (!fixed_end || *fixed_end > place_.begin)
    throw bad(fmt::format("{} begins at {} according to the zip directory, after its last possible offset", who,
                          central.local_offset),
              central.at_byte);
  const std::string local = read_bytes(central.local_offset, kLocalBytes + central.name.size());
  if (load_le<std::uint32_t>(local, 0) != kLocalSignature)
    throw bad(who + " has no local header here", central.local_offset);
  const auto flags = load_le<std::uint16_t>(local, 6);
  if (load_le<std::uint16_t>(local, 26) != central.name.size() ||
      std::string_view(local).substr(kLocalBytes) != central.name)
    throw bad(who + " has another name in its local header", central.local_offset);
  if (load_le<std::uint16_t>(local, 8) != central.method || (flags & kUnreadableFlags) != 0)
    throw bad(who + " is compressed or encrypted differently according to its local header", central.local_offset);
  for (const auto& [at, expected] : {std::pair{18, central.size_bytes}, std::pair{22, central.unpacked_bytes}}) {
    const auto size = load_le<std::uint32_t>(local, static_cast<std::size_t>(at));
    if ((flags & kDescriptorFlag) == 0 && size != kIn64_32 && size != expected)
      throw bad(fmt::format("{} has {} bytes according to its local header and {} according to the directory", who,
                            size, expected),
                central.local_offset);
  }
  const std::uint64_t offset = *fixed_end + load_le<std::uint16_t>(local, 28);
  const auto end = checked_add(offset, central.size_bytes);
  if (!end || *end > place_.begin)
    throw bad(fmt::format("{} has {} bytes from {}, which overlap the zip directory at {}", who, central.size_bytes,
                          offset, place_.begin),
              central.at_byte)
        .hint("the file is cut off or damaged; fetch it again");
  return {std::string(central.name), offset, central.size_bytes, central.crc32, central.method != 0};
}

void ZipReader::validate_apart(const std::vector<ZipEntry>& entries,
                               std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) const {
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second)
      throw bad(fmt::format("two zip entries overlap: one spans {} to {}, the other begins at {}", ranges[i - 1].first,
                            ranges[i - 1].second, ranges[i].first),
                ranges[i].first);
  std::vector<std::string_view> names;
  for (const ZipEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw bad("two zip entries have the name " + printable(*twice), place_.begin);
}

}  // namespace

ZipDirectory::ZipDirectory(std::vector<ZipEntry> entries) : entries_(std::move(entries)), by_name_(entries_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries_[a].name < entries_[b].name; });
}

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t i, std::string_view wanted) { return entries_[i].name < wanted; });
  return found != by_name_.end() && entries_[*found].name == name ? &entries_[*found] : nullptr;
}

ZipDirectory read_zip(const Source& source, const std::filesystem::path& path) {
  return ZipDirectory(ZipReader(source, path).read());
}

}  // namespace reshard
