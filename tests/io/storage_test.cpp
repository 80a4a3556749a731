#include <functional>

#include "reshard/io/local_storage.h"
#include "reshard/io/text_file.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("A file that is cut while open is an I/O error") {
  const TempDir dir;
  write_file(dir / "f", std::string(100, 'x'));
  const auto source = local_storage().open(dir / "f");
  fs::resize_file(dir / "f", 40);
  std::string text(100, '?');
  check_refused([&] { source->read_at(0, std::as_writable_bytes(std::span(text))); },
                {.kind = ErrorKind::kIo, .says = "the file ends here", .offset_bytes = 40});
}

TEST_CASE("A file that cannot be opened or created is named, and what is there stays") {
  const TempDir dir;
  write_file(dir / "f", "keep");
  fs::create_symlink(dir / "target", dir / "link");
  const auto open = [](const fs::path& path) { local_storage().open(path); };
  const auto create = [](const fs::path& path) { local_storage().create(path, 10); };
  const auto reopen = [](const fs::path& path) { local_storage().reopen(path); };
  const fs::path long_name(std::string(300, 'n'));
  struct Row {
    const char* title;
    std::function<void(const fs::path&)> action;
    fs::path name;
    ErrorKind kind = ErrorKind::kIo;
    Texts says = {};
  };
  for (const Row& row : {Row{"open nothing", open, "missing", ErrorKind::kBadInput, "no such file"},
                         Row{"open a directory", open, "", ErrorKind::kBadInput, "not a regular file"},
                         Row{"open a device", open, "/dev/null", ErrorKind::kBadInput},
                         Row{"open a name that is too long", open, long_name, ErrorKind::kIo, "cannot open"},
                         Row{"create over a file", create, "f"}, Row{"create where a link leads", create, "link"},
                         Row{"create in no directory", create, "no/f"}, Row{"reopen nothing", reopen, "missing"}}) {
    INFO(row.title);
    const fs::path path = row.name.empty() ? dir.path() : dir / row.name;
    check_refused([&] { row.action(path); }, {.kind = row.kind, .path = path, .says = row.says});
  }
  CHECK(read_file(dir / "f") == "keep");
  CHECK_FALSE(fs::exists(dir / "target"));
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
