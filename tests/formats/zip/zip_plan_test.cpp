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

using Numbers = std::vector<std::uint64_t>;

/// The numbers in the zip64 field of the header of one entry, with a name of one byte, that begins at `at`. Its fixed
/// part has `fixed` bytes, and says at `extra_at` how long its extra fields are.
Numbers zip64_numbers(const std::string& bytes, std::size_t at, std::size_t fixed, std::size_t extra_at) {
  const std::size_t extra_end = at + fixed + 1 + number_at<std::uint16_t>(bytes, at + extra_at);
  Numbers numbers;
  for (at += fixed + 1; at < extra_end;) {
    const auto size = number_at<std::uint16_t>(bytes, at + 2);
    if (number_at<std::uint16_t>(bytes, at) == 1)
      for (std::size_t i = 0; i < size / 8; ++i) numbers.push_back(number_at<std::uint64_t>(bytes, at + 4 + 8 * i));
    at += 4 + size;
    CHECK(at <= extra_end);
  }
  return numbers;
}

/// Plans entries of these sizes: they are read back, and every number has a zip64 record just where its field cannot
/// hold it. \returns where the content of each begins.
Numbers check_plan(const Numbers& sizes) {
  CAPTURE(sizes);
  ZipPlan zip;
  Numbers begins;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    begins.push_back(zip.add(std::string(1, static_cast<char>('a' + i)), sizes[i], static_cast<std::uint32_t>(i)));
  const std::vector<FilePart> parts = zip.finish();
  const ZipDirectory directory = read_zip(PartsSource(zip.size_bytes(), parts), "planned.zip");
  REQUIRE(directory.entries().size() == sizes.size());
  const std::string& first = parts.front().bytes;
  const std::string& last = parts.back().bytes;
  std::size_t central = 0;
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const ZipEntry& entry = directory.entries()[i];
    CHECK(entry.offset_bytes == begins[i]);
    CHECK(entry.offset_bytes % 64 == 0);
    CHECK(entry.size_bytes == sizes[i]);
    CHECK(entry.crc32 == i);
    CHECK_FALSE(entry.compressed);
    Numbers expected = sizes[i] >= kFull ? Numbers{sizes[i], sizes[i]} : Numbers{};
    if (i == 0) {
      CHECK(number_at<std::uint16_t>(first, 4) == (sizes[0] >= kFull ? 45 : 20));
      for (const std::size_t field : {18, 22})
        CHECK(number_at<std::uint32_t>(first, field) == std::min(sizes[0], kFull));
      CHECK(zip64_numbers(first, 0, 30, 28) == expected);
    }
    if (place >= kFull) expected.push_back(place);
    central = last.find("PK\1\2", central + (i == 0 ? 0 : 1));
    CHECK(zip64_numbers(last, central, 46, 30) == expected);
    place = begins[i] + sizes[i];
  }
  CHECK((last.find("PK\6\6") != last.npos) == (place >= kFull));  // the directory lies there
  return begins;
}

TEST_CASE("Sizes and places have a zip64 record from the first that their field cannot hold") {
  const std::uint64_t begin = check_plan({0})[0];
  for (const std::uint64_t number : {std::uint64_t{1}, kFull - 1, kFull, kFull + 1, std::uint64_t{1} << 42}) {
    check_plan({number});
    if (number == 1) continue;
    check_plan({number - begin});  // the directory begins there
    check_plan({number - begin, 5});
  }
  check_plan({kFull + 5, 0, 1, std::uint64_t{3} << 33, 7});
}

TEST_CASE("More entries than 65534 have a zip64 record, fewer have none") {
  for (const std::size_t count : {65534, 65535, 65536, 70000}) {
    INFO(count << " entries");
    ZipPlan zip;
    for (std::size_t i = 0; i < count; ++i) zip.add(std::to_string(i), i % 3, 0);
    const FilePart last = zip.finish().back();
    CHECK((last.bytes.find("PK\6\6") != last.bytes.npos) == (count >= 65535));
    CHECK(number_at<std::uint16_t>(last.bytes, last.bytes.size() - 12) == std::min<std::size_t>(count, 65535));
    // The parts of so many entries lie apart, so the directory alone is looked at.
    const ZipPlace place = find_zip_directory(PartsSource(zip.size_bytes(), {last}), "planned.zip");
    CHECK(place.entries == count);
    CHECK(place.begin + place.size_bytes < zip.size_bytes());
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
