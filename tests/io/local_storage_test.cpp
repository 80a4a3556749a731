// Reading and writing files of the local file system.

#include "reshard/io/local_storage.h"

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <random>
#include <thread>

#include "support/files.h"
#include "support/refusals.h"
#include "support/refused_calls.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {
namespace fs = std::filesystem;

std::string random_text(std::size_t size, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("Reads any range of a file, up to its last byte") {
  const test::TempDir dir;
  const std::string text = random_text(3 * 1048576 + 777);
  test::write_file(dir / "f", text);
  const auto source = local_storage().open(dir / "f");
  CHECK(source->size_bytes() == text.size());
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, text.size()},
                                     {1, 5000},
                                     {4096, 4096},
                                     {4095, 2},
                                     {1048575, 1048578},
                                     {text.size() - 1, 1},
                                     {text.size() - 5000, 5000},
                                     {text.size(), 0}}) {
    std::string out(size, '?');
    source->read_at(offset, std::as_writable_bytes(std::span(out)));
    CHECK((out == text.substr(offset, size)));
  }
  std::string past(10, '?');
  check_refused([&] { source->read_at(text.size() - 4, std::as_writable_bytes(std::span(past))); },
                {.kind = ErrorKind::kIo, .path = dir / "f", .offset_bytes = text.size()});
}

TEST_CASE("Writes neighbouring ranges of any size from several threads, and loses none") {
  const test::TempDir dir;
  const std::string text = random_text(5 * 1048576 + 321, 7);
  const fs::path path = dir / "copy";
  {
    const auto sink = local_storage().create(path, text.size());
    std::mt19937_64 random(11);
    std::vector<std::size_t> cuts{0, text.size()};
    for (int i = 0; i < 60; ++i) cuts.push_back(random() % text.size());
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i + 1 < cuts.size(); i += 3)
          sink->write_at(cuts[i], bytes(text).subspan(cuts[i], cuts[i + 1] - cuts[i]));
      });
    for (std::thread& thread : threads) thread.join();
    sink->start_writeback(0, 1 << 20);
    sink->wait_for_writeback(0, 1 << 20);
    sink->sync();
  }
  CHECK((test::read_file(path) == text));
}

TEST_CASE("Writes a range that lies in more parts than a system call takes") {
  const test::TempDir dir;
  const std::string text = random_text(40'000, 3);
  std::vector<std::span<const std::byte>> parts;
  std::mt19937_64 random(5);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::min<std::size_t>(random() % 20, text.size() - at);  // some have no bytes
    parts.push_back(bytes(text).subspan(at, size));
    at += size;
  }
  REQUIRE(parts.size() > 2ull * IOV_MAX);
  local_storage().create(dir / "copy", text.size() + 9)->write_gathered(9, parts);
  CHECK((test::read_file(dir / "copy") == std::string(9, '\0') + text));
}

TEST_CASE("Where the kernel refuses newer calls, files are written, and what is not supported is said") {
  for (const int number : {ENOSYS, EINVAL, EPERM, EOPNOTSUPP, EXDEV}) {
    const bool is_other_device = number == EXDEV;
    with_refused_calls(
        is_other_device    ? std::vector<long>{SYS_copy_file_range}
        : number == ENOSYS ? kNewCalls
                           : kFileCalls,
        number, [&] {
          INFO("errno " << number);
          const test::TempDir dir;
          test::write_file(dir / "f", "12345");
          const auto sink = local_storage().create(dir / "copy", 5);
          CHECK_FALSE(sink->copy_from(*local_storage().open(dir / "f"), 0, 0, 5));
          sink->write_at(0, bytes("67890"));
          sink->start_writeback(0, 5);
          sink->wait_for_writeback(0, 5);
          sink->sync();
          CHECK(test::read_file(dir / "copy") == "67890");
          if (is_other_device) return;
          Directories& directories = local_storage().directories();
          for (const RenameMode mode : {RenameMode::kNew, RenameMode::kExchange})
            CHECK(directories.rename(dir / "copy", dir / "f", mode) == RenameResult::kUnsupported);
          CHECK(directories.rename(dir / "copy", dir / "f", RenameMode::kReplace) == RenameResult::kDone);
          CHECK(test::read_file(dir / "f") == "67890");
          check_refused([&] { directories.lock(dir / "f", true); },
                        {.kind = ErrorKind::kUnsupported, .path = dir / "f"});
        });
  }
}

TEST_CASE("A range is copied from file to file, or it is said that it cannot be") {
  const test::TempDir dir;
  const std::string text = random_text(300'000, 9);
  test::write_file(dir / "f", text);
  const auto source = local_storage().open(dir / "f");
  const auto sink = local_storage().create(dir / "copy", 200'010);
  REQUIRE(sink->copy_from(*source, 50'001, 10, 200'000));
  CHECK((test::read_file(dir / "copy") == std::string(10, '\0') + text.substr(50'001, 200'000)));
  CHECK_FALSE(sink->copy_from(*source, 299'000, 0, 2'000));  // past the end of the file
}

}  // namespace
}  // namespace reshard::test
