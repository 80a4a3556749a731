// What Files says of the local file system.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "reshard/io/local_storage.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("A local directory lists what lies directly in it, by name, links by what they lead to") {
  const TempDir dir;
  write_file(dir / "b", "");
  write_file(dir / "a/x", "");
  fs::create_symlink("b", dir / "to_file");
  fs::create_symlink("a", dir / "to_directory");
  fs::create_symlink("nowhere", dir / "broken");
  fs::create_symlink("loop", dir / "loop");
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const std::vector<DirectoryEntry> expected{
      {"a", FileKind::kDirectory},           {"b", FileKind::kFile},     {"broken", FileKind::kBrokenLink, true},
      {"loop", FileKind::kBrokenLink, true}, {"pipe", FileKind::kOther}, {"to_directory", FileKind::kDirectory, true},
      {"to_file", FileKind::kFile, true}};
  CHECK(local_storage().list(dir.path()) == expected);
  for (const DirectoryEntry& entry : expected) {
    INFO(entry.name);
    CHECK(local_storage().kind_of(dir / entry.name) == entry.kind);
    CHECK(local_storage().exists(dir / entry.name) == (entry.kind != FileKind::kBrokenLink));
  }
}

TEST_CASE("A local directory that is missing or none cannot be listed") {
  const TempDir dir;
  write_file(dir / "f", "");
  for (const char* name : {"missing", "f"}) {
    const Error error = check_refused([&] { local_storage().list(dir / name); }, {.path = dir / name});
    CHECK(error.code() == (*name == 'f' ? std::errc::not_a_directory : std::errc::no_such_file_or_directory));
  }
}

TEST_CASE("A local path resolves to the one name of what it stands for") {
  const TempDir dir;
  const fs::path root = fs::canonical(dir.path());
  write_file(dir / "a/f", "abc");
  fs::create_symlink("a", dir / "link");
  Files& files = local_storage();
  for (const char* path : {"a/f", "a/./f", "a/../a/f", "link/f"}) CHECK(files.resolve(dir / path) == root / "a/f");
  CHECK(files.resolve(dir / "a/") == root / "a");
  CHECK(files.resolve(dir / "link/missing/x") == root / "a/missing/x");
  CHECK(files.resolve(".") == fs::current_path());
  CHECK(files.absolute("x/../y") == fs::current_path() / "x/../y");
  CHECK(files.absolute(dir / "link/.") == dir / "link/.");
  CHECK(error_of([&] { files.absolute(""); }).kind() == ErrorKind::kIo);
}

TEST_CASE("Local paths of one file are the same, and others are not") {
  const TempDir dir;
  write_file(dir / "a/f", "");
  write_file(dir / "a/g", "");
  fs::create_symlink("a", dir / "link");
  Files& files = local_storage();
  CHECK(files.is_same(dir / "a/f", dir / "link/f"));
  CHECK(files.is_same(dir / "a", dir / "link/"));
  CHECK_FALSE(files.is_same(dir / "a/f", dir / "a/g"));
  CHECK_FALSE(files.is_same(dir / "missing", dir / "missing"));
}

TEST_CASE("A directory is its owner's, which a link to it, a file, and what is not there are not") {
  const TempDir dir;
  write_file(dir / "d/f", "");
  fs::create_directory_symlink("d", dir / "link");
  Directories& directories = local_storage().directories();
  CHECK(directories.is_own(dir / "d"));
  for (const char* name : {"link", "d/f", "missing"}) CHECK_FALSE(directories.is_own(dir / name));
  if (::geteuid() == 0) {
    REQUIRE(::chown((dir / "d").c_str(), 65534, 65534) == 0);
    CHECK_FALSE(directories.is_own(dir / "d"));
  }
  const Unprivileged nobody(dir.path());
  CHECK(directories.is_own(dir / "d"));
  CHECK_FALSE(directories.is_own("/"));
  CHECK(local_storage().list(dir / "d").size() == 1);
}

TEST_CASE("The size of a local file is known without opening it") {
  const TempDir dir;
  write_file(dir / "f", "abc");
  fs::create_symlink("f", dir / "link");
  const Unprivileged nobody(dir.path());
  fs::permissions(dir / "f", fs::perms::none);
  CHECK(local_storage().size_bytes(dir / "f") == 3);
  CHECK(local_storage().size_bytes(dir / "link") == 3);
  CHECK(check_refused([&] { local_storage().size_bytes(dir / "missing"); }, {}).code() ==
        std::errc::no_such_file_or_directory);
  check_refused([&] { local_storage().size_bytes(dir.path()); }, {});
}

TEST_CASE("A local name that nothing can have is nothing") {
  const TempDir dir;
  write_file(dir / "f", "");
  for (const fs::path& path : {dir / "f/x", dir / std::string(300, 'x'), dir / "missing/x", fs::path()})
    CHECK(local_storage().kind_of(path) == FileKind::kNone);
}

TEST_CASE("What lies in a closed local directory is an error to look at, and a link to it is of another kind") {
  const TempDir dir;
  write_file(dir / "open/f", "");
  write_file(dir / "closed/f", "");
  fs::create_symlink("../closed/f", dir / "open/link");
  const Unprivileged nobody(dir.path());
  fs::permissions(dir / "closed", fs::perms::none);
  for (const fs::path& path : {dir / "closed/f", dir / "open/link"}) {
    const Error error = check_refused([&] { local_storage().kind_of(path); }, {.kind = ErrorKind::kIo, .path = path});
    CHECK(error.code() == std::errc::permission_denied);
    CHECK(local_storage().stamp(path).empty());
  }
  const std::vector<DirectoryEntry> expected{{"f", FileKind::kFile}, {"link", FileKind::kOther, true}};
  CHECK(local_storage().list(dir / "open") == expected);
  check_refused([&] { local_storage().list(dir / "closed"); }, {.kind = ErrorKind::kIo, .path = dir / "closed"});
  fs::permissions(dir / "closed", fs::perms::owner_read);  // listed, but not searched
  CHECK(local_storage().list(dir / "closed") == std::vector<DirectoryEntry>{{"f", FileKind::kFile}});
  fs::permissions(dir / "closed", fs::perms::owner_all);
}

TEST_CASE("The stamp of a local file changes when it is written, cut or replaced, though size and time are the same") {
  const TempDir dir;
  const fs::path file = dir / "f";
  const auto stamp = [&] { return local_storage().stamp(file); };
  write_file(file, "abc");
  const FileStamp written = stamp();
  CHECK_FALSE(written.empty());
  CHECK(stamp() == written);
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1000));
  const FileStamp touched = stamp();
  CHECK(touched != written);
  const auto time = fs::last_write_time(file);
  for (int tries = 0; tries < 1000 && stamp() == touched; ++tries) {  // clocks are coarse
    write_file(file, "abd");
    fs::last_write_time(file, time);
  }
  const FileStamp rewritten = stamp();
  CHECK(rewritten != touched);
  fs::resize_file(file, 2);
  fs::last_write_time(file, time);
  const FileStamp cut = stamp();
  CHECK(cut != rewritten);
  write_file(dir / "g", "ab");
  fs::last_write_time(dir / "g", time);
  fs::rename(dir / "g", file);
  CHECK(stamp() != cut);
  CHECK(local_storage().stamp(dir / "missing").empty());
}

}  // namespace
}  // namespace reshard::test
