#include "reshard/io/memory_files.h"

#include "reshard/io/text_file.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

std::string content_of(const Source& source) {
  std::string content(source.size_bytes(), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

TEST_CASE("Files in memory are read as they were written") {
  MemoryFiles files;
  const std::string content("a\0b", 3);
  files.write("/d/f", content);
  CHECK(content_of(*files.open("/d/f")) == content);
  CHECK(content_of(*files.open("/d/./x/../f")) == content);
  std::string part(2, ' ');
  files.open("/d/f")->read_at(1, std::as_writable_bytes(std::span(part)));
  CHECK(part == content.substr(1));
  CHECK(files.size_bytes("/d/f") == 3);
  check_refused([&] { files.size_bytes("/d"); }, {.path = "/d"});
  check_refused([&] { files.size_bytes("/no"); }, {.path = "/no"});
  CHECK(read_text_file(files, "/d/f", 3) == content);
  check_refused([&] { read_text_file(files, "/d/f", 2); }, {.path = "/d/f"});
  CHECK(files.open("/d/f")->descriptor() == -1);
}

TEST_CASE("A read past the end of a file in memory is an error that names file and byte") {
  MemoryFiles files;
  files.write("f", "abc");
  const auto source = files.open("f");
  std::string out(2, ' ');
  for (const std::uint64_t at : {std::uint64_t{2}, std::uint64_t{4}, UINT64_MAX})
    check_refused([&] { source->read_at(at, std::as_writable_bytes(std::span(out))); },
                  {.kind = ErrorKind::kIo, .path = "f", .offset_bytes = at});
  source->read_at(9, {});
}

TEST_CASE("A directory in memory lists what lies directly in it, by name") {
  MemoryFiles files;
  files.write("/m/b", "");
  files.write("/m/a.c/x", "");
  files.write("/m/a/y/z", "");
  files.write("/mn", "");
  files.make_directory("/m/e/");
  using Entries = std::vector<DirectoryEntry>;
  CHECK(files.list("/m/") == Entries{{"a", FileKind::kDirectory},
                                     {"a.c", FileKind::kDirectory},
                                     {"b", FileKind::kFile},
                                     {"e", FileKind::kDirectory}});
  CHECK(files.list("/") == Entries{{"m", FileKind::kDirectory}, {"mn", FileKind::kFile}});
  CHECK(files.list("/m/a/y") == Entries{{"z", FileKind::kFile}});
  CHECK(files.list("/m/e").empty());
  files.write("relative", "");
  CHECK(files.list(".") == Entries{{"relative", FileKind::kFile}});
  CHECK(check_refused([&] { files.list("/no"); }, {}).code() == std::errc::no_such_file_or_directory);
  CHECK(check_refused([&] { files.list("/mn"); }, {}).code() == std::errc::not_a_directory);
}

TEST_CASE("What is not there, or is a directory, cannot be opened in memory") {
  MemoryFiles files;
  files.write("/d/f", "");
  for (const char* path : {"/d", "/d/g", "f", "/d/f/x", ""}) {
    INFO(path);
    check_refused([&] { files.open(path); }, {.path = path});
  }
  CHECK(files.is_file("/d/f"));
  CHECK(files.is_directory("/d"));
  CHECK(files.exists("/d/"));
  CHECK_FALSE(files.exists("/d/f/x"));
  CHECK(files.kind_of("/e") == FileKind::kNone);
}

TEST_CASE("A path in memory resolves to its normal form, and paths that have the same are of one file") {
  MemoryFiles files;
  files.write("/d/f", "abc");
  files.write("r/f", "");
  CHECK(files.resolve("/d/./x/../f") == "/d/f");
  CHECK(files.resolve("/d/") == "/d");
  CHECK(files.resolve("r/..") == "");
  CHECK(files.absolute("r/../x") == "r/../x");
  CHECK(files.is_same("/d/f", "/d/../d/f"));
  CHECK_FALSE(files.is_same("/d/f", "r/f"));
  CHECK_FALSE(files.is_same("/no", "/no"));
}

TEST_CASE("No path in memory is a file and a directory") {
  MemoryFiles files;
  files.write("/d/f", "");
  CHECK(error_of([&] { files.write("/d", ""); }).kind() == ErrorKind::kUsage);
  CHECK(error_of([&] { files.write("/d/f/g/h", ""); }).kind() == ErrorKind::kUsage);
  CHECK(error_of([&] { files.make_directory("/d/f"); }).kind() == ErrorKind::kUsage);
  CHECK_FALSE(files.exists("/d/f/g"));
}

TEST_CASE("The stamp of a file in memory changes with every write, and tells files apart") {
  MemoryFiles files;
  files.write("f", "a");
  files.write("g", "a");
  const FileStamp stamp = files.stamp("f");
  CHECK_FALSE(stamp.empty());
  CHECK(files.stamp("f") == stamp);
  CHECK_FALSE(files.stamp("g") == stamp);
  files.write("f", "a");
  CHECK_FALSE(files.stamp("f") == stamp);
  CHECK(files.stamp("no").empty());
}

TEST_CASE("A source in memory keeps the content it was opened with") {
  MemoryFiles files;
  files.write("f", "old");
  const auto source = files.open("f");
  files.write("f", "younger");
  CHECK(content_of(*source) == "old");
  CHECK(files.remove("f"));
  CHECK(content_of(*source) == "old");
  CHECK_FALSE(files.remove("f"));
}

TEST_CASE("To remove a directory in memory removes what is in it, and nothing else") {
  MemoryFiles files;
  files.write("/d/e/f", "");
  files.write("/d.f", "");
  CHECK(files.remove("/d"));
  CHECK_FALSE(files.exists("/d/e/f"));
  CHECK_FALSE(files.exists("/d/e"));
  CHECK(files.is_file("/d.f"));
}

}  // namespace
}  // namespace reshard::test
