#include "reshard/formats/zip/zip.h"

#include "reshard/io/memory_files.h"
#include "support/catch.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

const std::vector<ZipPart> kParts{{"a/data.pkl", "pickle"}, {"a/data/0", "0123456789"}, {"a/empty", ""}};

void check_parts(const std::string& zip) {
  const ZipDirectory directory = read_zip(MemorySource(zip), "f");
  REQUIRE(directory.entries().size() == kParts.size());
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const ZipEntry& entry = directory.entries()[i];
    CHECK(entry.name == kParts[i].name);
    CHECK(zip.substr(entry.offset_bytes, entry.size_bytes) == kParts[i].content);
    CHECK_FALSE(entry.compressed);
    CHECK(directory.find(entry.name) == &entry);
  }
  CHECK(directory.find("a/data") == nullptr);
  CHECK(directory.find("") == nullptr);
  CHECK(directory.find("z") == nullptr);
}

TEST_CASE("An archive gives its entries, whatever zip64 records, descriptors, padding and comment it has") {
  for (const bool zip64 : {false, true})
    for (const bool descriptors : {false, true})
      for (const std::uint16_t padding : std::vector<std::uint16_t>{0, 1, 64})
        for (const std::size_t comment_bytes : {0, 1, 65535})
          check_parts(zip_bytes(kParts, {zip64, descriptors, padding, std::string(comment_bytes, 'c')}));
}

TEST_CASE("An archive may have no entries, 65535 without a zip64 record, and 70000 with one") {
  for (const std::size_t count : {0, 65535, 70000}) {
    std::vector<ZipPart> parts;
    for (std::size_t i = 0; i < count; ++i) parts.push_back({std::to_string(i), "x"});
    CHECK(read_zip(MemorySource(zip_bytes(parts, {.zip64 = count > 65535})), "f").entries().size() == count);
  }
  CHECK(read_zip(MemorySource(zip_bytes({}, {.zip64 = true})), "f").entries().empty());
}

TEST_CASE("The CRC comes as the archive claims it, and a compressed entry is listed with the bytes that it takes") {
  std::string zip = zip_bytes(kParts);
  const std::size_t central = central_header(zip, 1), local = local_header(zip, 1);
  put<std::uint32_t>(zip, central + 16, 0xDEADBEEF);
  put<std::uint16_t>(zip, central + 10, 8);
  put<std::uint16_t>(zip, local + 8, 8);
  put<std::uint32_t>(zip, central + 24, 1000);
  put<std::uint32_t>(zip, local + 22, 1000);
  const ZipDirectory directory = read_zip(MemorySource(zip), "f");
  CHECK(directory.entries()[1].crc32 == 0xDEADBEEF);
  CHECK(directory.entries()[1].compressed);
  CHECK(directory.entries()[1].size_bytes == 10);
}

}  // namespace
}  // namespace reshard::test
