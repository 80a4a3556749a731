#include "reshard/formats/safetensors/safetensors.h"

#include <cstring>

#include "reshard/io/memory_files.h"
#include "support/containers.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kHeader =
    R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[5],"data_offsets":[24,29]}})";
const std::string kData = "aaaaaaaaaaaaaaaaaaaaaaaabbbbb";
const std::string kFile = safetensors_bytes(kHeader, kData);

std::string patched(const std::string& from, const std::string& to) {
  const auto at = kHeader.find(from);
  REQUIRE(at != std::string::npos);
  return std::string(kHeader).replace(at, from.size(), to);
}

/// A header, and how many bytes of data its file has.
struct Header {
  std::string json;
  std::uint64_t data_bytes = kData.size();
};

Container read_header(const Header& header) {
  return parse_safetensors_header(header.json, 8 + header.json.size() + header.data_bytes, "d/m");
}

std::string length_field(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

TEST_CASE("Tensors come by offset, whatever the header's order") {
  const Container file = read_header(
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"y":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
       R"("z":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}})",
       5});
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.tensors[0].name == "y");
  CHECK(file.tensors[1].name == "z");
  CHECK(file.tensors[1].size_bytes == 0);
  CHECK(file.tensors[2].name == "x");
}

TEST_CASE("A file of an empty object and no data is valid") {
  CHECK(read_safetensors(MemorySource(safetensors_bytes("{}", "")), "m").tensors.empty());
  CHECK(read_header({"{}      ", 0}).tensors.empty());
}

TEST_CASE("Files whose size is not what their header says, and files of other formats, are refused") {
  const std::string size = std::to_string(kFile.size()), header_size = std::to_string(kHeader.size());
  std::vector<Refused<std::string>> rows = {
      {"a header past the end",
       kFile.substr(0, 8 + kHeader.size() - 1),
       {.says = "claims a header of " + header_size + " bytes", .offset_bytes = 0}},
      {"a header of a byte that is not there",
       length_field(1),
       {.says = "claims a header of 1 bytes, but the file has only 8 in all"}},
      {"the longest header", length_field(100'000'000), {.says = "but the file has only 8 in all"}},
      {"a byte after the last tensor",
       kFile + "x",
       {.says = "has bytes after its last tensor: its header accounts for " + size}},
      {"a byte after no tensor",
       safetensors_bytes("{}", "x"),
       {.says = "has bytes after its last tensor", .hint = "truncate -s 10"}},
      {"a git-lfs pointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:"
       "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n",
       {.says = "git-lfs pointer", .hint = "git lfs pull"}},
      {"a zip archive cut off", "PK\3\4...", {.says = "has 7 bytes, fewer than the 8"}},
      {"a zip archive", "PK\3\4....", {.says = "is a zip file, as torch.save writes it", .hint = ".bin or .pt"}}};
  for (const std::size_t bytes : {0, 1, 7})
    rows.push_back({std::to_string(bytes) + " bytes",
                    kFile.substr(0, bytes),
                    {.says = "has " + std::to_string(bytes) + " bytes, fewer than the 8", .hint = "cut off"}});
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7})
    rows.push_back(
        {"a header of " + std::to_string(length),
         length_field(length) + kHeader,
         {.says = {"claims a header of " + std::to_string(length) + " bytes", "safetensors allows 100000000"},
          .offset_bytes = 0}});
  for (const std::size_t cut : {1, 5, 29})
    rows.push_back({"cut off by " + std::to_string(cut),
                    kFile.substr(0, kFile.size() - cut),
                    {.says = "is cut off: its header accounts for " + size + " bytes, the file has " +
                             std::to_string(kFile.size() - cut),
                     .hint = "fetch the file again"}});
  check_refusals([](const std::string& content) { read_safetensors(MemorySource(content), "d/m.safetensors"); },
                 {.path = "d/m.safetensors"}, rows);
}

TEST_CASE("A header as long as allowed is read to its end") {
  const TempDir dir;
  write_file(dir / "m", length_field(100'000'000) + kHeader);
  fs::resize_file(dir / "m", 8 + 100'000'000);  // sparse: the rest reads as NUL bytes
  check_refused([&] { read_safetensors(dir / "m"); }, {.says = "NUL", .offset_bytes = 8 + kHeader.size()});
}

TEST_CASE("What is not a regular file is refused by its name") {
  const TempDir dir;
  for (const fs::path& path : {dir / "no", dir.path()}) check_refused([&] { read_safetensors(path); }, {.path = path});
}

TEST_CASE("Offsets that are not those of one tensor after another are refused") {
  const auto two = [](const char* a, const char* b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(a) +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}";
  };
  const std::string third = R"(,"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}})";
  check_refusals<Header>(
      read_header, {.path = "d/m", .tensor = "b"},
      {{"a hole at the start",
        {patched("[0,24]", "[1,25]")},
        {.tensor = "a", .says = "begin at 1 and leave a hole after the start of the data, which ends at 0"}},
       {"a hole between two",
        {patched("[24,29]", "[25,30]"), 30},
        {.says = "begin at 25 and leave a hole after tensor a, which ends at 24"}},
       {"far behind the end of the file, which is told of that tensor, not of the one behind the hole",
        {two("[0,4]", "[900,904]") + third, 12},
        {.says = "data_offsets are 900 to 904, but the file has 12 bytes of data"}},
       {"just behind the end of the file",
        {two("[0,4]", "[8,12]") + "}", 8},
        {.says = "data_offsets are 8 to 12, but the file has 8 bytes of data"}},
       {"a hole before an empty one at the end of the file",
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})",
         8},
        {.says = "begin at 8 and leave a hole after tensor a, which ends at 4"}},
       {"a byte of another tensor",
        {patched("[24,29]", "[23,28]")},
        {.says = "begin at 23 and overlap tensor a, which ends at 24"}},
       {"all bytes of another tensor", {two("[0,4]", "[0,4]") + "}", 4}, {.says = "overlap tensor a"}},
       {"an end before the begin", {patched("[24,29]", "[24,23]")}, {.says = "end at 23, before they begin at 24"}}});
}

TEST_CASE("Shapes that do not fit the offsets, or 64 bits, are refused") {
  const auto empty = [](const char* dtype, const char* shape) {
    return R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":)" + shape + R"(,"data_offsets":[0,0]}})";
  };
  std::string many = "{";
  std::uint64_t end = 0;
  constexpr std::uint64_t kEach = (std::uint64_t{1} << 61) - 1;
  for (int i = 0; i < 8; ++i, end += kEach)
    many += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" + std::to_string(kEach) +
            R"(],"data_offsets":[)" + std::to_string(end) + "," + std::to_string(end + kEach) + "]}";
  check_refusals<Header>(read_header, {.path = "d/m"},
                         {{"another size",
                           {patched("[2,3]", "[2,4]")},
                           {.tensor = "a", .says = "shape [2, 4] of F32 takes 32 bytes, but data_offsets contain 24"}},
                          {"another dtype",
                           {patched("F32", "F64")},
                           {.tensor = "a", .says = "shape [2, 3] of F64 takes 48 bytes, but data_offsets contain 24"}},
                          {"an end of 2^64 - 1",
                           {patched("[24,29]", "[24,18446744073709551615]")},
                           {.says = "contain 18446744073709551591"}},
                          {"an overflow, multiplied from the left",
                           {empty("U8", "[9223372036854775808,4,0]"), 0},
                           {.tensor = "a", .says = "[9223372036854775808, 4, 0] of U8 overflows 64 bits"}},
                          {"2^61 elements of 8 bits, which wrap to 0",
                           {empty("U8", "[2305843009213693952]"), 0},
                           {.tensor = "a", .says = "overflows 64 bits"}},
                          {"2^58 elements of 64 bits",
                           {empty("I64", "[288230376151711744]"), 0},
                           {.says = "[288230376151711744] of I64 overflows 64 bits"}},
                          {"tensors that together end past 2^64", {many + "}", 0}, {.says = "more than 2^64"}}});
  const Container zero_first = read_header({empty("U8", "[0,9223372036854775808,4]"), 0});
  REQUIRE(zero_first.tensors.size() == 1);
  CHECK(zero_first.tensors[0].size_bytes == 0);
}

TEST_CASE("Elements of 4 and 6 bits must fill whole bytes") {
  const auto header = [](const char* dtype, const char* shape, int end) {
    return R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" +
           std::to_string(end) + "]}}";
  };
  CHECK(read_header({header("F4", "[3,2]", 3), 3}).tensors.at(0).size_bytes == 3);
  CHECK(read_header({header("F6_E3M2", "[2,2,2]", 6), 6}).tensors.at(0).size_bytes == 6);
  check_refusals<Header>(read_header, {.path = "d/m", .tensor = "a"},
                         {{"3 × 4 bits",
                           {header("F4", "[3]", 1), 1},
                           {.says = "[3] of F4 takes 12 bits, which is not a whole number of bytes"}},
                          {"3 × 4 bits in 2 bytes",
                           {header("F4", "[3]", 2), 2},
                           {.says = "[3] of F4 takes 12 bits, which is not a whole number of bytes"}},
                          {"4 bits", {header("F4", "[]", 1), 1}, {.says = "takes 4 bits"}},
                          {"2 × 6 bits", {header("F6_E3M2", "[2]", 2), 2}, {.says = "takes 12 bits"}}});
}

TEST_CASE("A warning and metadata of the header reach the caller") {
  const Container file = read_header(
      {R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":{"x":[1]}}})", 1});
  CHECK(file.metadata == std::vector<std::pair<std::string, std::string>>{{"k", "v"}});
  REQUIRE(file.warnings.size() == 1);
  CHECK_THAT(file.warnings[0], Says("\"scale\""));
}

TEST_CASE("An error about a shape of very many dims stays short") {
  std::string ones = "1";
  for (int i = 0; i < 50'000; ++i) ones += ",1";
  const Error error = check_refused([&] { read_header({patched("2,3", ones)}); }, {.path = "d/m", .tensor = "a"});
  CHECK(std::strlen(error.what()) < 2000);
}

TEST_CASE("A file of every dtype is read back as written") {
  const TempDir dir;
  TensorMap tensors;
  for (const DTypeRow& row : kDTypes)
    tensors["t." + std::string(row.name)] = {row.dtype, {3, 8}, std::string(3ull * row.bits, row.name[0])};
  write_safetensors(dir / "m", tensors);
  const Container file = read_safetensors(dir / "m");
  CHECK(file.path == dir / "m");
  CHECK(file.size_bytes == fs::file_size(dir / "m"));
  CHECK(file.warnings.empty());
  CHECK((tensors_of(file) == tensors));
}

TEST_CASE(
    "No patch of one byte of a valid file crashes the reader, escapes its errors, or makes a tensor leave the file") {
  const std::size_t refusals =
      check_byte_patches(kFile, std::string("\0\"{]-9\xff\\", 8), [](const std::string& content) {
        for (const TensorEntry& tensor : read_safetensors(MemorySource(content), "m").tensors) {
          CHECK(tensor.offset_bytes >= kFile.size() - kData.size());
          CHECK(tensor.offset_bytes + tensor.size_bytes <= content.size());
        }
      });
  CHECK(refusals > 500);
}

}  // namespace
}  // namespace reshard::test
