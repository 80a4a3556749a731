// Archives that are made wrong by a patch of a correct one.

#include <fstream>

#include "reshard/formats/zip/zip.h"
#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

const std::vector<ZipPart> kParts{{"a/x", "xxxxx"}, {"a/y", "yyyyyyyy"}, {"a/z", "zz"}};
const std::string kZip = zip_bytes(kParts);
const std::string kZip64 = zip_bytes(kParts, {.zip64 = true});

// Places in the records, from their beginnings.
constexpr std::size_t kEndEntriesHere = 8, kEndEntries = 10, kEndSize = 12, kEndOffset = 16, kEndComment = 20;
constexpr std::size_t kCentralFlags = 8, kCentralMethod = 10, kCentralPacked = 20, kCentralUnpacked = 24,
                      kCentralNameBytes = 28, kCentralDisk = 34, kCentralOffset = 42, kCentralName = 46;
constexpr std::size_t kLocalFlags = 6, kLocalMethod = 8, kLocalPacked = 18, kLocalExtraBytes = 28, kLocalName = 30;
constexpr std::size_t kEnd64Length = 4, kEnd64Disk = 16, kEnd64EntriesHere = 24, kEnd64Entries = 32, kEnd64Size = 40,
                      kEnd64Offset = 48;

std::size_t end64(const std::string& zip) {
  return zip.find("PK\6\6");
}
std::size_t locator(const std::string& zip) {
  return zip.find("PK\6\7");
}

/// Bytes of an archive that are other ones.
struct Edit {
  std::size_t at;
  std::string bytes;
};
using Edits = std::vector<Edit>;
Edits operator+(Edits edits, const Edits& more) {
  edits.insert(edits.end(), more.begin(), more.end());
  return edits;
}
Edits text_at(std::size_t at, std::string bytes) {
  return {{at, std::move(bytes)}};
}
Edits u16_at(std::size_t at, U16 number) {
  return {{at, le_bytes(number)}};
}
Edits u32_at(std::size_t at, U64 number) {
  return {{at, le_bytes(static_cast<U32>(number))}};
}
Edits u64_at(std::size_t at, U64 number) {
  return {{at, le_bytes(number)}};
}

struct Patch {
  const char* name;
  Edits edits;
  U64 at_byte;
  std::string says;
  ErrorKind kind = ErrorKind::kBadInput;
};

void check_patches(const std::string& valid, const std::vector<Patch>& patches) {
  for (const Patch& patch : patches) DYNAMIC_SECTION(patch.name) {
      std::string zip = valid;
      for (const Edit& edit : patch.edits) zip.replace(edit.at, edit.bytes.size(), edit.bytes);
      check_refused([&] { read_zip(MemorySource(zip), "d/f.pt"); },
                    {.kind = patch.kind, .path = "d/f.pt", .says = patch.says, .offset_bytes = patch.at_byte});
    }
}

TEST_CASE("End records that contradict the file are refused") {
  const std::size_t end = end_record(kZip);
  const auto entries = [&](U16 count) {
    return u16_at(end + kEndEntries, count) + u16_at(end + kEndEntriesHere, count);
  };
  check_patches(
      kZip,
      {{"no end", text_at(end, "Q"), kZip.size(), "no zip directory at its end"},
       {"a byte after the end", text_at(kZip.size(), "x"), end, "is not the end of the file"},
       {"a comment that is not there", u16_at(end + kEndComment, 1), end, "is not the end"},
       {"an end in the comment", u16_at(end + kEndComment, 26) + text_at(kZip.size(), kZip.substr(end, 22) + "abcd"),
        kZip.size(), "is not the end of the file"},
       {"fewer entries claimed", entries(2), central_header(kZip, 2), "continues after its last entry"},
       {"one entry more claimed", entries(4), central_header(kZip, 0), "too few for the 4 entries"},
       {"65534 entries claimed", entries(65534), central_header(kZip, 0), "too few for the 65534 entries"},
       {"a directory one byte off", u32_at(end + kEndOffset, central_header(kZip, 0) + 1), end, "but must end at"},
       {"a directory one byte longer", u32_at(end + kEndSize, end - central_header(kZip, 0) + 1), end,
        "but must end at"},
       {"a directory before the file", u32_at(end + kEndOffset, 0xFFFFFFF0) + u32_at(end + kEndSize, end + 16), end,
        "but must end at"},
       {"the whole file as directory", u32_at(end + kEndOffset, 0) + u32_at(end + kEndSize, end), 0,
        "other data instead of an entry"},
       {"zip64 without its record", u32_at(end + kEndOffset, UINT32_MAX), end, "zip64 record"},
       {"another disk", u16_at(end + 4, 1), end, "multi-volume", ErrorKind::kUnsupported},
       {"entries on other disks", u16_at(end + kEndEntries, 9), end, "multi-volume", ErrorKind::kUnsupported}});
}

TEST_CASE("Zip64 records that contradict the file are refused") {
  const std::size_t record = end64(kZip64);
  const std::size_t at = locator(kZip64);
  const U64 directory = central_header(kZip64, 0);
  check_patches(
      kZip64,
      {{"a locator to the end of numbers", u64_at(at + 8, UINT64_MAX), at, "does not fit"},
       {"a locator that wraps", u64_at(at + 8, UINT64_MAX - 55), at, "does not fit"},
       {"a locator into nothing", u64_at(at + 8, record - 1), record - 1, "its zip64 record is invalid"},
       {"a locator of two disks", u32_at(at + 16, 2), at, "multi-volume", ErrorKind::kUnsupported},
       {"a record of another length", u64_at(record + kEnd64Length, 45), record, "length"},
       {"a record of a wrapping length", u64_at(record + kEnd64Length, UINT64_MAX - 11), record, "length"},
       {"a record of another disk", u32_at(record + kEnd64Disk, 1), record, "multi-volume", ErrorKind::kUnsupported},
       {"a directory at 2^64 - 1", u64_at(record + kEnd64Offset, UINT64_MAX), record, "but must end at"},
       {"a directory that wraps to the right end",
        u64_at(record + kEnd64Offset, record + 1) + u64_at(record + kEnd64Size, UINT64_MAX), record, "but must end at"},
       {"2^63 entries", u64_at(record + kEnd64Entries, U64{1} << 63) + u64_at(record + kEnd64EntriesHere, U64{1} << 63),
        directory, "too few for the 9223372036854775808 entries"},
       {"an end record that knows better", u32_at(end_record(kZip64) + kEndOffset, 5), record, "disagree"},
       {"an end record that counts otherwise", u16_at(end_record(kZip64) + kEndEntries, 1), record, "disagree"}});
}

TEST_CASE("Entries that a reader must not take are refused") {
  const std::size_t first = central_header(kZip, 0);
  const std::size_t second = central_header(kZip, 1);
  const std::size_t local = local_header(kZip, 1);
  check_patches(
      kZip, {{"encrypted", u16_at(second + kCentralFlags, 1), second, "encrypted", ErrorKind::kUnsupported},
             {"masked headers", u16_at(second + kCentralFlags, 1 << 13), second, "encrypted", ErrorKind::kUnsupported},
             {"encrypted by its own header", u16_at(local + kLocalFlags, 1), local, "differently"},
             {"compressed by the directory alone", u16_at(second + kCentralMethod, 8), local, "differently"},
             {"compressed by its own header alone", u16_at(local + kLocalMethod, 8), local, "differently"},
             {"on another disk", u16_at(second + kCentralDisk, 1), second, "another volume", ErrorKind::kUnsupported},
             {"no signature", text_at(second, "Q"), second, "other data"},
             {"a name past the directory", u16_at(second + kCentralNameBytes, 65535), second, "exceeds the directory"},
             {"no name", u16_at(first + kCentralNameBytes, 0), first, "has no name"},
             {"a NUL in its name", text_at(second + kCentralName + 1, std::string(1, '\0')), second,
              "\"a\\x00y\" has a control"},
             {"a newline in its name", text_at(second + kCentralName + 1, "\n"), second, "control character"},
             {"another name in its local header", text_at(local + kLocalName, "b"), local, "another name"},
             {"a name twice", text_at(second + kCentralName + 2, "x") + text_at(local + kLocalName + 2, "x"), first,
              "two zip entries have the name a/x"}});
}

TEST_CASE("Entries whose places are not their own are refused") {
  const std::size_t first = central_header(kZip, 0);
  const std::size_t second = central_header(kZip, 1);
  const std::size_t third = central_header(kZip, 2);
  const std::size_t local = local_header(kZip, 1);
  const auto resize = [](std::size_t index, U32 size) {
    const std::size_t central = central_header(kZip, index), own = local_header(kZip, index);
    return u32_at(central + kCentralPacked, size) + u32_at(central + kCentralUnpacked, size) +
           u32_at(own + kLocalPacked, size) + u32_at(own + kLocalPacked + 4, size);
  };
  check_patches(
      kZip,
      {{"an offset at the directory", u32_at(second + kCentralOffset, first), second, "after its last possible offset"},
       {"an offset past the end", u32_at(second + kCentralOffset, 0xFFFFFFFE), second,
        "after its last possible offset"},
       {"an offset into a content", u32_at(second + kCentralOffset, local + 1), local + 1, "no local header"},
       {"the header of another", u32_at(second + kCentralOffset, 0), 0, "another name"},
       {"a content up to the next header and a byte more", resize(0, 6), local, "zip entries overlap"},
       {"a content over all the others", resize(0, U32(first) - 33), local, "zip entries overlap"},
       {"a content a byte into the directory", resize(2, 3), third, "overlap the zip directory"},
       {"a content past 4 GB", resize(2, 0xFFFFFFFE), third, "overlap the zip directory"},
       {"an extra field past the directory", u16_at(local_header(kZip, 2) + kLocalExtraBytes, 65535), third,
        "overlap the zip directory"},
       {"fewer bytes by its own header", u32_at(local + kLocalPacked, 1), local,
        "1 bytes according to its local header and 8 according to the directory"},
       {"stored in fewer bytes than it has", u32_at(second + kCentralPacked, 1), second,
        "1 bytes packed and 8 unpacked"},
       {"two entries of one place", text_at(third, kZip.substr(second, kCentralName + 3)), local,
        "zip entries overlap"}});
}

TEST_CASE("Zip64 fields of entries that make no sense are refused") {
  const std::size_t last = central_header(kZip64, 2);
  const std::size_t extra = last + kCentralName + 3;
  check_patches(
      kZip64,
      {{"a field of another kind", u16_at(extra, 2), last, "lacks the zip64 field"},
       {"a field too short", u16_at(extra + 2, 16), last, "lacks the zip64 field"},
       {"a field past the record", u16_at(extra + 2, 25), last, "lacks the zip64 field"},
       {"two fields", u16_at(extra + 2, 8) + text_at(extra + 12, std::string("\1\0\10\0", 4)), last,
        "or has two of them"},
       {"a size that wraps with its offset", u64_at(extra + 4, UINT64_MAX - 10) + u64_at(extra + 12, UINT64_MAX - 10),
        last, "18446744073709551605 bytes from"},
       {"an offset that wraps", u64_at(extra + 20, UINT64_MAX - 5), last, "after its last possible offset"}});
}

TEST_CASE("A directory of gigabytes is refused before it is read") {
  const TempDir dir;
  const U64 size = U64{3} << 30;
  std::string tail = zip_bytes({}, {.zip64 = true});
  put<U64>(tail, kEnd64Size, size);
  put<U64>(tail, kEnd64Entries, 1000);
  put<U64>(tail, kEnd64EntriesHere, 1000);
  put<U64>(tail, locator(tail) + 8, size);
  write_file(dir / "f", "PK\3\4");
  std::filesystem::resize_file(dir / "f", size);  // a hole
  std::ofstream(dir / "f", std::ios::binary | std::ios::app) << tail;
  check_refused([&] { read_zip(*local_storage().open(dir / "f"), dir / "f"); },
                {.kind = ErrorKind::kUnsupported, .says = "zip directory has 3.22 GB"});
}

TEST_CASE("An archive cut off at any byte is refused") {
  for (const std::string& zip : {kZip, kZip64}) {
    for (std::size_t size = 0; size < zip.size(); ++size)
      check_refused([&] { read_zip(MemorySource(zip.substr(0, size)), "f"); }, {});
  }
}

TEST_CASE("No patch of one byte of an archive makes an entry leave the file") {
  std::size_t refusals = 0;
  for (const std::string& valid : {kZip, kZip64})
    refusals += check_byte_patches(valid, std::string("\0\1\x7f\xff", 4), [](const std::string& zip) {
      const ZipDirectory directory = read_zip(MemorySource(zip), "f");
      for (const ZipEntry& entry : directory.entries())
        CHECK((entry.offset_bytes <= zip.size() && entry.size_bytes <= zip.size() - entry.offset_bytes));
    });
  CHECK(refusals > 1500);
}

}  // namespace
}  // namespace reshard::test
