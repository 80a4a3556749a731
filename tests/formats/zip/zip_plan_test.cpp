#include "reshard/formats/zip/zip_plan.h"

#include <algorithm>
#include <cstring>

#include "reshard/base/crc32.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/formats/zip/zip_end.h"
#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kFull = 0xFFFFFFFF;  // what a field of 32 bits cannot say

/// A file of some parts, and of zeros between them.
class PartsSource final : public Source {
 public:
  PartsSource(std::uint64_t size_bytes, std::vector<FilePart> parts) : size_(size_bytes), parts_(std::move(parts)) {}
  std::uint64_t size_bytes() const override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    REQUIRE(offset + out.size() <= size_);
    std::fill(out.begin(), out.end(), std::byte{0});
    for (const FilePart& part : parts_) {
      const std::uint64_t begin = std::max(offset, part.offset_bytes);
      const std::uint64_t end = std::min(offset + out.size(), part.offset_bytes + part.bytes.size());
      if (begin < end) std::memcpy(&out[begin - offset], &part.bytes[begin - part.offset_bytes], end - begin);
    }
  }

 private:
  std::uint64_t size_;
  std::vector<FilePart> parts_;
};

template <typename Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number number;
  REQUIRE(at + sizeof(Number) <= bytes.size());
  std::memcpy(&number, &bytes[at], sizeof(Number));
  return number;
}

struct Planned {
  std::vector<FilePart> parts;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> begins;

  ZipDirectory read() const { return read_zip(PartsSource(size_bytes, parts), "planned.zip"); }
  bool has_zip64_end() const { return parts.back().bytes.find("PK\6\6") != std::string::npos; }
  const std::string& first() const { return parts.front().bytes; }
  /// Of central header `index`, whose names have one byte each.
  std::string central(std::size_t index) const {
    std::size_t at = parts.back().bytes.find("PK\1\2");
    for (; index > 0; --index) at = parts.back().bytes.find("PK\1\2", at + 1);
    return parts.back().bytes.substr(at);
  }
};

/// Entries named "a", "b", … of these sizes.
Planned plan_of(const std::vector<std::uint64_t>& sizes) {
  ZipPlan zip;
  Planned planned;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    planned.begins.push_back(
        zip.add(std::string(1, static_cast<char>('a' + i)), sizes[i], static_cast<std::uint32_t>(0x1234 + i)));
  planned.parts = zip.finish();
  planned.size_bytes = zip.size_bytes();
  return planned;
}

/// The numbers in the zip64 field of a header whose fixed part has `fixed` bytes.
std::vector<std::uint64_t> zip64_numbers(const std::string& header, std::size_t fixed, std::size_t extra_at) {
  const auto name_bytes = number_at<std::uint16_t>(header, extra_at - 2);
  const std::size_t extra_end = fixed + name_bytes + number_at<std::uint16_t>(header, extra_at);
  std::vector<std::uint64_t> numbers;
  for (std::size_t at = fixed + name_bytes; at < extra_end;) {
    const auto bytes = number_at<std::uint16_t>(header, at + 2);
    if (number_at<std::uint16_t>(header, at) == 1)
      for (std::size_t i = 0; i < bytes / 8; ++i) numbers.push_back(number_at<std::uint64_t>(header, at + 4 + 8 * i));
    at += 4 + bytes;
    CHECK(at <= extra_end);
  }
  return numbers;
}

std::vector<std::uint64_t> local_numbers(const std::string& header) {
  return zip64_numbers(header, 30, 28);
}

std::vector<std::uint64_t> central_numbers(const std::string& header) {
  return zip64_numbers(header, 46, 30);
}

void check_read_back(const Planned& planned, const std::vector<std::uint64_t>& sizes) {
  const ZipDirectory directory = planned.read();
  REQUIRE(directory.entries().size() == sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const ZipEntry& entry = directory.entries()[i];
    CHECK(entry.offset_bytes == planned.begins[i]);
    CHECK(entry.offset_bytes % 64 == 0);
    CHECK(entry.size_bytes == sizes[i]);
    CHECK(entry.crc32 == 0x1234 + i);
    CHECK_FALSE(entry.compressed);
  }
}

TEST_CASE("A size has a zip64 record from the first that its field cannot hold") {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, kFull - 1, kFull, kFull + 1, std::uint64_t{1} << 42}) {
    INFO("size " << size);
    const Planned planned = plan_of({size});
    check_read_back(planned, {size});
    const bool zip64 = size >= kFull;
    CHECK(number_at<std::uint16_t>(planned.first(), 4) == (zip64 ? 45 : 20));
    for (const std::size_t field : {18, 22})
      CHECK(number_at<std::uint32_t>(planned.first(), field) == (zip64 ? kFull : size));
    const std::vector<std::uint64_t> both{size, size};
    CHECK(local_numbers(planned.first()) == (zip64 ? both : std::vector<std::uint64_t>{}));
    CHECK(central_numbers(planned.central(0)) == (zip64 ? both : std::vector<std::uint64_t>{}));
  }
}

TEST_CASE(
    "The place of a header has a zip64 record from the first that its field cannot hold, and so the directory's") {
  const std::uint64_t begin = plan_of({0}).begins[0];
  for (const std::uint64_t place : {kFull - 1, kFull, kFull + 1}) {
    INFO("place " << place);
    const bool zip64 = place >= kFull;
    const Planned directory_there = plan_of({place - begin});
    check_read_back(directory_there, {place - begin});
    CHECK(directory_there.has_zip64_end() == zip64);
    CHECK(central_numbers(directory_there.central(0)).empty());

    const Planned header_there = plan_of({place - begin, 5});
    check_read_back(header_there, {place - begin, 5});
    CHECK(central_numbers(header_there.central(0)).empty());
    CHECK(central_numbers(header_there.central(1)) ==
          (zip64 ? std::vector<std::uint64_t>{place} : std::vector<std::uint64_t>{}));
    CHECK(header_there.has_zip64_end());  // the directory lies behind it
  }
}

TEST_CASE("A large entry behind a large one has both sizes and its place in its zip64 record") {
  const std::vector<std::uint64_t> sizes{kFull + 5, 0, 1, std::uint64_t{3} << 33, 7};
  const Planned planned = plan_of(sizes);
  check_read_back(planned, sizes);
  const auto numbers = central_numbers(planned.central(3));
  REQUIRE(numbers.size() == 3);
  CHECK(numbers[0] == sizes[3]);
  CHECK(numbers[1] == sizes[3]);
  CHECK(numbers[2] > kFull);
  CHECK(central_numbers(planned.central(4)).size() == 1);
}

TEST_CASE("More entries than 65534 have a zip64 record, fewer have none") {
  for (const std::size_t count : {65534, 65535, 65536, 70000}) {
    INFO(count << " entries");
    ZipPlan zip;
    for (std::size_t i = 0; i < count; ++i) zip.add(std::to_string(i), i % 3, 0);
    Planned planned;
    planned.parts = zip.finish();
    planned.size_bytes = zip.size_bytes();
    CHECK(planned.has_zip64_end() == (count >= 65535));
    const std::string end = planned.parts.back().bytes.substr(planned.parts.back().bytes.size() - 22);
    CHECK(number_at<std::uint16_t>(end, 10) == std::min<std::size_t>(count, 65535));
    // The parts of so many entries lie apart, so the directory alone is looked at.
    const ZipPlace place = find_zip_directory(PartsSource(planned.size_bytes, {planned.parts.back()}), "planned.zip");
    CHECK(place.entries == count);
    CHECK(place.begin + place.size_bytes < planned.size_bytes);
  }
}

TEST_CASE("Random plans are read back, their payloads aligned, with no byte between parts and payloads") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 61));
  CAPTURE(seed);
  Random random(seed);
  ZipPlan zip;
  std::vector<std::pair<std::string, std::string>> contents;
  std::vector<FilePart> payloads;
  const std::uint64_t count = pick(random, 0, 20);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name = std::string(pick(random, 0, 130), 'n') + std::to_string(i);
    const std::string content = random_tensor(random, DType::kU8, {pick(random, 0, 200)}).bytes;
    contents.emplace_back(name, content);
    if (random() % 2) {
      zip.add(name, content);
      continue;
    }
    const std::uint64_t begin = zip.add(name, content.size(), crc32(std::as_bytes(std::span(content))));
    if (!content.empty()) payloads.push_back({begin, content});  // an empty one may lie inside a part
  }
  std::vector<FilePart> all = zip.finish();
  all.insert(all.end(), payloads.begin(), payloads.end());
  std::sort(all.begin(), all.end(), [](const FilePart& a, const FilePart& b) {
    return std::pair(a.offset_bytes, a.bytes.size()) < std::pair(b.offset_bytes, b.bytes.size());
  });
  std::string file;
  for (const FilePart& part : all) {
    CHECK(part.offset_bytes == file.size());
    file += part.bytes;
  }
  CHECK(file.size() == zip.size_bytes());
  const ZipDirectory directory = read_zip(PartsSource(file.size(), {{0, file}}), "random.zip");
  REQUIRE(directory.entries().size() == contents.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const ZipEntry& entry = directory.entries()[i];
    CHECK(entry.name == contents[i].first);
    CHECK(entry.offset_bytes % 64 == 0);
    CHECK((file.substr(entry.offset_bytes, entry.size_bytes) == contents[i].second));
    CHECK(entry.crc32 == crc32(std::as_bytes(std::span(contents[i].second))));
  }
}

}  // namespace
}  // namespace reshard::test
