#include "reshard/formats/zip/zip_plan.h"

#include <bit>
#include <cstring>
#include <span>
#include <type_traits>

#include "reshard/base/crc32.h"

namespace reshard {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written in native byte order");

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint32_t kFull32 = 0xFFFFFFFF;  // "see the zip64 record"
constexpr std::uint16_t kFull16 = 0xFFFF;
constexpr std::uint16_t kUtf8Names = 1 << 11;
constexpr std::uint16_t kPlainVersion = 20;
constexpr std::uint16_t kZip64Version = 45;
constexpr std::uint16_t kZip64Field = 0x0001;
constexpr std::uint16_t kPaddingField = 0x4246;  // "FB", as in torch
constexpr std::uint32_t kNoTimeFirstOf1980 = 0x0021'0000;

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::is_unsigned_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

bool needs_zip64(std::uint64_t value) {
  return value >= kFull32;
}

std::uint32_t clamp32(std::uint64_t value) {
  return needs_zip64(value) ? kFull32 : static_cast<std::uint32_t>(value);
}

std::uint16_t clamp16(std::uint64_t value) {
  return value >= kFull16 ? kFull16 : static_cast<std::uint16_t>(value);
}

/// Writes the fields that a local and a central header share, from the version on.
void put_common(std::string& out, bool zip64, std::uint32_t crc, std::uint64_t size_bytes, std::size_t name_bytes) {
  put(out, zip64 ? kZip64Version : kPlainVersion);
  put(out, kUtf8Names);
  put<std::uint16_t>(out, 0);  // stored
  put(out, kNoTimeFirstOf1980);
  put(out, crc);
  put(out, clamp32(size_bytes));  // compressed and uncompressed size
  put(out, clamp32(size_bytes));
  put(out, static_cast<std::uint16_t>(name_bytes));
}

/// Writes the numbers that did not fit, in the order that the format requires.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  std::string field;
  put(field, kZip64Field);
  put(field, static_cast<std::uint16_t>(numbers.size() * sizeof(std::uint64_t)));
  for (const std::uint64_t number : numbers) put(field, number);
  return field;
}

}  // namespace

void ZipPlan::append(const std::string& bytes) {
  if (parts_.empty() || parts_.back().offset_bytes + parts_.back().bytes.size() != end_) parts_.push_back({end_, {}});
  parts_.back().bytes += bytes;
  end_ += bytes.size();
}

void ZipPlan::add_header(Entry entry) {
  const bool zip64 = needs_zip64(entry.size_bytes);
  std::string extra = zip64 ? zip64_field({entry.size_bytes, entry.size_bytes}) : std::string();
  constexpr std::uint64_t kFixedBytes = 30;
  constexpr std::uint64_t kFieldHeaderBytes = 4;
  const std::uint64_t unpadded = end_ + kFixedBytes + entry.name.size() + extra.size() + kFieldHeaderBytes;
  const std::uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  put(extra, kPaddingField);
  put(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header = "PK\x03\x04";
  put_common(header, zip64, entry.crc, entry.size_bytes, entry.name.size());
  put(header, static_cast<std::uint16_t>(extra.size()));
  entry.header_offset = end_;
  append(header + entry.name + extra);
  entries_.push_back(std::move(entry));
}

std::uint64_t ZipPlan::add(std::string name, std::uint64_t size_bytes, std::uint32_t crc) {
  add_header({std::move(name), size_bytes, crc, 0});
  const std::uint64_t begin = end_;
  end_ += size_bytes;
  return begin;
}

void ZipPlan::add(std::string name, const std::string& content) {
  add_header({std::move(name), content.size(), crc32(std::as_bytes(std::span(content))), 0});
  append(content);
}

std::vector<FilePart> ZipPlan::finish() {
  const std::uint64_t directory_begin = end_;
  for (const Entry& entry : entries_) {
    std::string extra;
    if (needs_zip64(entry.size_bytes) && needs_zip64(entry.header_offset))
      extra = zip64_field({entry.size_bytes, entry.size_bytes, entry.header_offset});
    else if (needs_zip64(entry.size_bytes))
      extra = zip64_field({entry.size_bytes, entry.size_bytes});
    else if (needs_zip64(entry.header_offset))
      extra = zip64_field({entry.header_offset});
    std::string header = "PK\x01\x02";
    put(header, kZip64Version);  // made by
    put_common(header, !extra.empty(), entry.crc, entry.size_bytes, entry.name.size());
    put(header, static_cast<std::uint16_t>(extra.size()));
    header.append(10, '\0');  // no comment, first disk, no attributes
    put(header, clamp32(entry.header_offset));
    append(header + entry.name + extra);
  }
  const std::uint64_t directory_bytes = end_ - directory_begin;
  const std::uint64_t count = entries_.size();
  std::string tail;
  if (count >= kFull16 || needs_zip64(directory_begin) || needs_zip64(directory_bytes)) {
    tail = "PK\x06\x06";
    put<std::uint64_t>(tail, 44);  // size of the rest of this record
    put(tail, kZip64Version);
    put(tail, kZip64Version);
    put<std::uint64_t>(tail, 0);  // disks
    put(tail, count);
    put(tail, count);
    put(tail, directory_bytes);
    put(tail, directory_begin);
    tail += "PK\x06\x07";
    put<std::uint32_t>(tail, 0);
    put(tail, end_);
    put<std::uint32_t>(tail, 1);
  }
  tail += "PK\x05\x06";
  put<std::uint32_t>(tail, 0);
  put(tail, clamp16(count));
  put(tail, clamp16(count));
  put(tail, clamp32(directory_bytes));
  put(tail, clamp32(directory_begin));
  put<std::uint16_t>(tail, 0);
  append(tail);
  return std::move(parts_);
}

}  // namespace reshard
