#include <cstring>
#include <thread>

#include "reshard/io/local_storage.h"
#include "reshard/io/text_file.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::string read_range(const Source& source, std::uint64_t offset_bytes, std::size_t size_bytes) {
  std::string text(size_bytes, '?');
  source.read_at(offset_bytes, std::as_writable_bytes(std::span(text)));
  return text;
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("A source reads any range of its file") {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const auto source = local_storage().open(dir / "f");
  CHECK(source->size_bytes() == 10);
  CHECK(read_range(*source, 0, 10) == "0123456789");
  CHECK(read_range(*source, 7, 3) == "789");
  CHECK(read_range(*source, 10, 0).empty());
}

TEST_CASE("Reading past the end of a file is an I/O error at the byte where it ends") {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const auto source = local_storage().open(dir / "f");
  check_refused([&] { read_range(*source, 8, 3); }, {.kind = ErrorKind::kIo, .path = dir / "f", .offset_bytes = 10});
}

TEST_CASE("A file that is cut while open is an I/O error") {
  const TempDir dir;
  write_file(dir / "f", std::string(100, 'x'));
  const auto source = local_storage().open(dir / "f");
  fs::resize_file(dir / "f", 40);
  check_refused([&] { read_range(*source, 0, 100); },
                {.kind = ErrorKind::kIo, .says = "the file ends here", .offset_bytes = 40});
}

TEST_CASE("Opening what is not a regular file is bad input") {
  const TempDir dir;
  check_refused([&] { local_storage().open(dir / "missing"); }, {.path = dir / "missing", .says = "no such file"});
  check_refused([&] { local_storage().open(dir.path()); }, {.path = dir.path(), .says = "not a regular file"});
  CHECK(error_of([&] { local_storage().open("/dev/null"); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("A file that the system will not open is an I/O error") {
  const TempDir dir;
  const fs::path path = dir / std::string(300, 'n');
  check_refused([&] { local_storage().open(path); }, {.kind = ErrorKind::kIo, .path = path, .says = "cannot open"});
}

TEST_CASE("A created file has its size at once and keeps what is written in any order") {
  const TempDir dir;
  {
    const auto sink = local_storage().create(dir / "f", 10);
    CHECK(fs::file_size(dir / "f") == 10);
    sink->write_at(5, bytes("56789"));
    sink->write_at(0, bytes("01234"));
    sink->sync();
  }
  CHECK(read_file(dir / "f") == "0123456789");
}

TEST_CASE("A file of no bytes can be created") {
  const TempDir dir;
  local_storage().create(dir / "f", 0)->sync();
  CHECK(fs::file_size(dir / "f") == 0);
}

TEST_CASE("Creating over an existing file is an I/O error and leaves it as it was") {
  const TempDir dir;
  write_file(dir / "f", "keep");
  check_refused([&] { local_storage().create(dir / "f", 10); }, {.kind = ErrorKind::kIo, .path = dir / "f"});
  CHECK(read_file(dir / "f") == "keep");
}

TEST_CASE("Creating does not follow a link to a file elsewhere") {
  const TempDir dir;
  fs::create_symlink(dir / "target", dir / "link");
  CHECK(error_of([&] { local_storage().create(dir / "link", 1); }).kind() == ErrorKind::kIo);
  CHECK_FALSE(fs::exists(dir / "target"));
}

TEST_CASE("Creating in a directory that is not there is an I/O error") {
  const TempDir dir;
  check_refused([&] { local_storage().create(dir / "no" / "f", 1); },
                {.kind = ErrorKind::kIo, .path = dir / "no" / "f"});
}

TEST_CASE("A size no file system holds is refused before anything is written") {
  const TempDir dir;
  const Error error = error_of([&] { local_storage().create(dir / "f", (std::uint64_t{1} << 63) - 1); });
  CHECK((error.kind() == ErrorKind::kNoSpace || error.kind() == ErrorKind::kIo));
  CHECK(error.path() == (dir / "f").string());
  CHECK_THAT(error.what(), Says("cannot reserve"));
}

TEST_CASE("A reopened file is written without losing what it holds") {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  local_storage().reopen(dir / "f")->write_at(3, bytes("xyz"));
  CHECK(read_file(dir / "f") == "012xyz6789");
  check_refused([&] { local_storage().reopen(dir / "missing"); }, {.kind = ErrorKind::kIo, .path = dir / "missing"});
}

TEST_CASE("Several threads write and read one file at once") {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kPart = 4096;
  const TempDir dir;
  {
    const auto sink = local_storage().create(dir / "f", kThreads * kPart);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back(
          [&, t] { sink->write_at(t * kPart, bytes(std::string(kPart, static_cast<char>('a' + t)))); });
    for (std::thread& thread : threads) thread.join();
  }
  const auto source = local_storage().open(dir / "f");
  std::vector<std::string> parts(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] { parts[t] = read_range(*source, t * kPart, kPart); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < kThreads; ++t) CHECK(parts[t] == std::string(kPart, static_cast<char>('a' + t)));
}

TEST_CASE("A text file is read whole if it is within its cap") {
  const TempDir dir;
  write_file(dir / "f", std::string("a\0b\n", 4));
  CHECK(read_text_file(local_storage(), dir / "f", 4) == std::string("a\0b\n", 4));
  check_refused([&] { read_text_file(local_storage(), dir / "f", 3); },
                {.path = dir / "f", .says = "is 4 B, which is more than the 3 B"});
  CHECK(error_of([&] { read_text_file(local_storage(), dir / "no", 3); }).kind() == ErrorKind::kBadInput);
}

}  // namespace
}  // namespace reshard::test
