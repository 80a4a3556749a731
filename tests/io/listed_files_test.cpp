// What one request sees of files: each directory is listed once, and answers are those of the files themselves.

#include "reshard/io/listed_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "reshard/io/local_storage.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The local file system, with the number of calls that name each path.
class CountedFiles final : public Files {
 public:
  std::map<fs::path, int> lists, looks, opens;
  std::function<void()> after_open = [] {};

  std::unique_ptr<Source> open(const fs::path& path) override {
    ++opens[path];
    auto source = local_storage().open(path);
    after_open();
    return source;
  }
  std::vector<DirectoryEntry> list(const fs::path& path) override { return ++lists[path], local_storage().list(path); }
  FileKind kind_of(const fs::path& path) override { return ++looks[path], local_storage().kind_of(path); }
  FileStamp stamp(const fs::path& path) override { return local_storage().stamp(path); }
  fs::path absolute(const fs::path& path) override { return local_storage().absolute(path); }
  fs::path resolve(const fs::path& path) override { return ++looks[path], local_storage().resolve(path); }
};

TEST_CASE("A request lists each directory once and looks up none of its entries") {
  const TempDir dir;
  for (const char* name : {"a/x/f", "a/y/g", "a/h"}) write_file(dir / name, "");
  CountedFiles counted;
  ListedFiles files(counted);
  for (int i = 0; i < 3; ++i) {
    CHECK(files.is_directory(dir / "a"));
    for (const char* name : {"a/x/f", "a/y/g", "a/h", "a/./h", "a//h"}) CHECK(files.is_file(dir / name));
    for (const char* name : {"a/none", "a/none/f", "a/h/f", "a/x/none"}) CHECK_FALSE(files.exists(dir / name));
    CHECK(files.list(dir / "a").size() == 3);
    CHECK(files.resolve(dir / "a/x/f") == files.resolve(dir / "a") / "x/f");
  }
  CHECK(counted.lists == std::map<fs::path, int>{{dir / "a", 1}, {dir / "a/x", 1}, {dir / "a/y", 1}});
  CHECK(counted.looks ==
        std::map<fs::path, int>{{dir / "a", 2}, {dir / "a/.", 1}, {dir / "a/x/.", 1}, {dir / "a/y/.", 1}});
}

TEST_CASE("A request sees links, pipes and odd names as the file system does") {
  const TempDir dir;
  write_file(dir / "a/f", "");
  write_file(dir / "a/d/g", "");
  for (const auto& [to, name] : {std::pair("f", "file"), {"d", "folder"}, {"nowhere", "broken"}, {"loop", "loop"}})
    fs::create_symlink(to, dir / "a" / name);
  REQUIRE(::mkfifo((dir / "a/pipe").c_str(), 0600) == 0);
  for (const bool lists_first : {false, true}) {
    ListedFiles files(local_storage());
    if (lists_first) files.list(dir / "a");
    for (const std::string name :
         {"",     "f",      "file", "folder", "folder/g",    "folder/none", "broken",    "broken/x",
          "loop", "loop/x", "pipe", "pipe/x", "none",        "none/x",      "f/x",       "f/",
          "f/.",  "d/",     "d/.",  "d/..",   "folder/../f", "folder/./g",  "none/../f", "none/."}) {
      INFO(name);
      const fs::path path = name.empty() ? dir / "a" : dir / "a" / name;
      CHECK(files.kind_of(path) == local_storage().kind_of(path));
      if (!name.starts_with("loop")) CHECK(files.resolve(path) == local_storage().resolve(path));
      CHECK(files.is_same(path, dir / "a/f") == local_storage().is_same(path, dir / "a/f"));
    }
    CHECK(files.kind_of(dir / "a" / std::string(300, 'x')) == FileKind::kNone);
    CHECK(files.kind_of(fs::path()) == FileKind::kNone);
    CHECK(files.list(dir / "a") == local_storage().list(dir / "a"));
  }
}

TEST_CASE("A request is refused what the file system refuses, under the path that it asked for") {
  const TempDir dir;
  write_file(dir / "a/f", "");
  for (const char* name : {"closed", "listed", "searched"}) write_file(dir / "a" / name / "f", "");
  fs::create_symlink("closed/f", dir / "a/link");
  const Unprivileged nobody(dir.path());
  fs::permissions(dir / "a/closed", fs::perms::none);
  fs::permissions(dir / "a/listed", fs::perms::owner_read);
  fs::permissions(dir / "a/searched", fs::perms::owner_exec);
  ListedFiles files(local_storage());
  CHECK(files.is_directory(dir / "a"));
  for (const char* name : {"a/closed/f", "a/closed/none", "a/listed/f", "a/listed/none", "a/listed/.", "a/link"})
    check_refused([&] { files.kind_of(dir / name); }, {.kind = ErrorKind::kIo, .path = dir / name});
  CHECK(files.is_file(dir / "a/searched/f"));
  CHECK_FALSE(files.exists(dir / "a/searched/none"));
  for (int i = 0; i < 2; ++i) {
    for (const char* name : {"a/closed", "a/./closed", "a/searched"})
      check_refused([&] { files.list(dir / name); }, {.kind = ErrorKind::kIo, .path = dir / name});
    CHECK(files.list(dir / "a/listed").size() == 1);
    check_refused([&] { files.list(dir / "a/f"); }, {.path = dir / "a/f"});
    check_refused([&] { files.list(dir / "a/none"); }, {.path = dir / "a/none"});
  }
  for (const char* name : {"closed", "listed", "searched"}) fs::permissions(dir / "a" / name, fs::perms::owner_all);
}

TEST_CASE("A file that is opened again stays as it was opened first, until it is stamped") {
  const TempDir dir;
  write_file(dir / "f", "old");
  CountedFiles counted;
  ListedFiles files(counted);
  const auto text = [&] {
    const auto source = files.open(dir / "f");
    std::string bytes(source->size_bytes(), '\0');
    source->read_at(0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  CHECK(text() == "old");
  write_file(dir / "g", "newer");
  fs::rename(dir / "g", dir / "f");
  CHECK(text() == "old");
  CHECK(counted.opens[dir / "f"] == 1);
  CHECK(files.stamp(dir / "f") == local_storage().stamp(dir / "f"));
  CHECK(text() == "newer");
  CHECK(counted.opens[dir / "f"] == 2);
  for (int i = 0; i < 200; ++i) {
    write_file(dir / std::to_string(i), "");
    files.open(dir / std::to_string(i));
  }
  CHECK(text() == "newer");
  CHECK(counted.opens[dir / "f"] == 3);  // others have taken its place
}

TEST_CASE("A file that is replaced and stamped under another name, or while it is opened, is read anew") {
  const TempDir dir;
  write_file(dir / "f", "1");
  CountedFiles counted;
  ListedFiles files(counted);
  const auto text = [&] {
    const auto source = files.open(dir / "f");
    std::string bytes(source->size_bytes(), '\0');
    source->read_at(0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  const auto replace = [&](const char* bytes) {
    write_file(dir / "g", bytes);
    fs::rename(dir / "g", dir / "f");
    files.stamp(dir / "./f");
  };
  CHECK(text() == "1");
  replace("2");
  counted.after_open = [&] { replace("3"); };
  CHECK(text() == "2");
  counted.after_open = [] {};
  CHECK(text() == "3");
  CHECK(counted.opens[dir / "f"] == 3);
}

TEST_CASE("Files that stay open make room if the process may open no more") {
  const TempDir dir;
  for (int i = 0; i < 40; ++i) write_file(dir / std::to_string(i), "");
  const auto descriptors = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  CountedFiles counted;
  // A limit of the process would leave UBSan without the pipe through which it looks at types.
  counted.after_open = [&, limit = descriptors() + 8] {
    if (descriptors() > limit) throw system_error(EMFILE, "opening", dir.path());
  };
  ListedFiles files(counted);
  int most = 0;
  for (int i = 0; i < 40; ++i) {
    files.open(dir / std::to_string(i));
    most = std::max(most, counted.opens[dir / std::to_string(i)]);
  }
  CHECK(most == 2);
}

TEST_CASE("A file that vanishes after its directory was listed cannot be opened") {
  const TempDir dir;
  write_file(dir / "f", "");
  ListedFiles files(local_storage());
  CHECK(files.list(dir.path()).size() == 1);
  fs::remove(dir / "f");
  CHECK(files.is_file(dir / "f"));
  check_refused([&] { files.open(dir / "f"); }, {.path = dir / "f", .says = "no such file"});
}

}  // namespace
}  // namespace reshard::test
