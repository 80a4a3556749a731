#include "reshard/io/mapped_range.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "reshard/io/local_storage.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Says;

const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

/// A file of four pages and a bit, each byte its place modulo 251.
class Mapped {
 public:
  explicit Mapped(std::uint64_t begin_bytes = 0) {
    text.resize(4 * kPage + 100);
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
    test::write_file(path, text);
    fd = ::open(path.c_str(), O_RDONLY);
    range = MappedRange::make(fd, path, begin_bytes, text.size() - begin_bytes);
  }
  ~Mapped() { ::close(fd); }

  std::string seen() const {
    std::string copy(range->bytes().size(), '?');
    std::copy(range->bytes().begin(), range->bytes().end(), std::as_writable_bytes(std::span(copy)).begin());
    return copy;
  }

  test::TempDir dir;
  fs::path path = dir / "f";
  std::string text;
  int fd = -1;
  std::unique_ptr<MappedRange> range;
};

TEST_CASE("A mapped range has the bytes of its part of the file") {
  const Mapped mapped(kPage);
  REQUIRE(mapped.range);
  CHECK(mapped.range->begin_bytes() == kPage);
  CHECK(mapped.range->end_bytes() == mapped.text.size());
  CHECK(mapped.seen() == mapped.text.substr(kPage));
  CHECK_NOTHROW(mapped.range->validate_whole());
}

TEST_CASE("Looking at a mapped file that was cut ends in an I/O error, not in a signal") {
  const Mapped mapped;
  fs::resize_file(mapped.path, kPage);
  const std::string seen = mapped.seen();
  CHECK(seen.substr(0, kPage) == mapped.text.substr(0, kPage));
  CHECK(seen.substr(kPage) == std::string(seen.size() - kPage, '\0'));
  const Error error = error_of([&] { mapped.range->validate_whole(); });
  CHECK(error.kind() == ErrorKind::kIo);
  CHECK(error.path() == mapped.path.string());
  CHECK(error.offset_bytes() == kPage);
  CHECK_THAT(error.what(), Says("the file ends here"));
}

TEST_CASE("A mapped file that was cut inside its last page is found out, though nothing faults there") {
  const Mapped mapped;
  fs::resize_file(mapped.path, mapped.text.size() - 1);
  CHECK(mapped.seen() != mapped.text);
  CHECK(error_of([&] { mapped.range->validate_whole(); }).offset_bytes() == mapped.text.size() - 1);
}

TEST_CASE("A mapped file that was cut and has grown again is found out") {
  const Mapped mapped;
  fs::resize_file(mapped.path, 0);
  mapped.seen();
  test::write_file(mapped.path, mapped.text);
  const Error error = error_of([&] { mapped.range->validate_whole(); });
  CHECK(error.kind() == ErrorKind::kIo);
  CHECK_THAT(error.what(), Says("could not be read while it was mapped"));
}

TEST_CASE("Writing from a mapped file that was cut is an I/O error") {
  const Mapped mapped;
  const auto sink = local_storage().create(mapped.dir / "out", mapped.text.size());
  fs::resize_file(mapped.path, kPage);
  CHECK(error_of([&] { sink->write_at(0, mapped.range->bytes()); }).kind() == ErrorKind::kIo);
  const std::span<const std::byte> parts[] = {mapped.range->bytes().first(kPage), mapped.range->bytes().last(kPage)};
  CHECK(error_of([&] { sink->write_gathered(0, parts); }).kind() == ErrorKind::kIo);
  CHECK(error_of([&] { mapped.range->validate_whole(); }).kind() == ErrorKind::kIo);
}

TEST_CASE("A slot that was lost is whole again for the next range") {
  for (int i = 0; i < 3; ++i) {
    const Mapped cut;
    fs::resize_file(cut.path, 0);
    cut.seen();
    CHECK_THROWS_AS(cut.range->validate_whole(), Error);
  }
  const Mapped mapped;
  CHECK(mapped.seen() == mapped.text);
  CHECK_NOTHROW(mapped.range->validate_whole());
}

TEST_CASE("More ranges than there is room for are refused, and there is room again afterwards") {
  const Mapped mapped;
  std::vector<std::unique_ptr<MappedRange>> ranges;
  for (int i = 0; i < 5000; ++i) {
    ranges.push_back(MappedRange::make(mapped.fd, mapped.path, 0, kPage));
    if (!ranges.back()) break;
  }
  CHECK(ranges.size() > 1000);
  CHECK(ranges.size() < 5000);
  CHECK_FALSE(ranges.back());
  ranges.clear();
  CHECK(MappedRange::make(mapped.fd, mapped.path, 0, kPage));
}

TEST_CASE("A bus error that is not ours still ends the program") {
  const Mapped mapped;  // so that the handler is there
  const test::TempDir dir;
  test::write_file(dir / "other", std::string(kPage, 'x'));
  const int fd = ::open((dir / "other").c_str(), O_RDONLY);
  const auto* const other = static_cast<const char*>(::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0));
  fs::resize_file(dir / "other", 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(2);  // a sanitizer's report is expected
    const volatile char* const place = other;
    ::_exit(*place == 'x' ? 0 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) != 0));
  ::munmap(const_cast<char*>(other), kPage);
  ::close(fd);
}

}  // namespace
}  // namespace reshard
