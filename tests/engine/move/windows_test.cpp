#include "reshard/engine/move/windows.h"

#include <algorithm>

#include "reshard/io/local_storage.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A file with a few bytes that tell places apart.
std::shared_ptr<Source> file_of(const fs::path& path, std::uint64_t size_bytes) {
  const auto sink = local_storage().create(path, size_bytes);
  for (std::uint64_t at = 0; at + 8 <= size_bytes; at += kMiB / 4) sink->write_at(at, std::as_bytes(std::span(&at, 1)));
  return local_storage(IoMode::kMmap).open(path);
}

std::uint64_t value_at(std::span<const std::byte> view) {
  std::uint64_t value = 0;
  std::copy_n(view.begin(), 8, std::as_writable_bytes(std::span(&value, 1)).begin());
  return value;
}

TEST_CASE("A view shows its range of the file, and the next one nearby is in the same window") {
  const TempDir dir;
  const auto file = file_of(dir / "f", 40 * kMiB);
  Windows windows(32 * kMiB, 1);
  windows.start_block();
  const auto first = windows.view(file, 5 * kMiB, kMiB, 1);
  REQUIRE(first.size() == kMiB);
  CHECK(value_at(first) == 5 * kMiB);
  windows.start_block();
  const auto next = windows.view(file, 6 * kMiB, kMiB, 1);
  CHECK(next.data() == first.data() + kMiB);
  CHECK(value_at(windows.view(file, 39 * kMiB, kMiB, 1)) == 39 * kMiB);
  CHECK(value_at(next) == 6 * kMiB);  // a view of the same block stays
  CHECK_NOTHROW(windows.validate_whole());
}

TEST_CASE("Windows take no more than their budget: what has no room is not mapped") {
  const TempDir dir;
  std::vector<std::shared_ptr<Source>> files;
  for (int i = 0; i < 6; ++i) files.push_back(file_of(dir / std::to_string(i), 20 * kMiB));
  Windows windows(8 * kMiB, 1);
  windows.start_block();
  std::size_t mapped = 0;
  for (const auto& file : files) mapped += windows.view(file, 0, kMiB, 4).empty() ? 0 : 1;
  CHECK(mapped == 4);                                 // of 2 MiB each
  CHECK(windows.view(files[5], 0, kMiB, 5).empty());  // a fifth of the budget is no whole page
  windows.start_block();
  CHECK(value_at(windows.view(files[5], 18 * kMiB, 2 * kMiB, 1)) == 18 * kMiB);
  CHECK(windows.view(files[4], 0, 9 * kMiB, 1).empty());
}

TEST_CASE("Where a thread goes from file to file, windows become as small as what it looks at") {
  const TempDir dir;
  std::vector<std::shared_ptr<Source>> files;
  for (int i = 0; i < 8; ++i) files.push_back(file_of(dir / std::to_string(i), 64 * kMiB));
  Windows windows(32 * kMiB, 1);
  const auto look = [&](std::size_t file, std::uint64_t at, std::uint64_t size) {
    windows.start_block();
    return windows.view(files[file], at, size, 1).data();
  };
  // Two blocks of 2 MiB that lie beside each other are in one window or in two.
  const auto same_window = [&](std::size_t file, std::uint64_t at) {
    const std::byte* const first = look(file, at, 2 * kMiB);
    return look(file, at + 2 * kMiB, 2 * kMiB) == first + 2 * kMiB &&
           look(file, at, 2 * kMiB) == first;  // and was not there by chance: it is still
  };
  CHECK(same_window(0, 0));
  for (std::uint64_t row = 0; row < 4; ++row)
    for (std::size_t file = 0; file < files.size(); ++file) look(file, 4 * kMiB * row, 2 * kMiB);
  // Now each has 2 MiB: 15 views of that size in other files still leave room for the first.
  const std::byte* const first = look(0, 32 * kMiB, 2 * kMiB);
  for (std::size_t i = 0; i < 15; ++i) look(1 + i % 7, (32 + 4 * (i / 7)) * kMiB, 2 * kMiB);
  CHECK(look(0, 32 * kMiB, 2 * kMiB) == first);
  // Front to back they grow again.
  for (std::uint64_t at = 0; at < 32; at += 2) look(3, at * kMiB, 2 * kMiB);
  CHECK(same_window(4, 16 * kMiB));
}

TEST_CASE("What is too short for a window of its own is seen in one that is there") {
  const TempDir dir;
  const auto file = file_of(dir / "f", 8 * kMiB);
  Windows windows(32 * kMiB, 1000);
  windows.start_block();
  CHECK(windows.view(file, 0, 999, 1).empty());
  CHECK(windows.view(file, 0, 1000, 1).size() == 1000);
  CHECK(windows.view(file, 3 * kMiB, 8, 1).size() == 8);
}

TEST_CASE("A file that cannot be mapped, or has become too short, has no views") {
  const TempDir dir;
  const auto file = file_of(dir / "f", 8 * kMiB);
  Windows windows(32 * kMiB, 1);
  windows.start_block();
  CHECK(windows.view(local_storage(IoMode::kRead).open(dir / "f"), 0, kMiB, 1).empty());
  CHECK(windows.view(file, 8 * kMiB - 10, 11, 1).empty());
  CHECK(windows.view(file, 9 * kMiB, 1, 1).empty());
  CHECK(windows.view(file, 8 * kMiB - 10, 10, 1).size() == 10);
}

TEST_CASE("Only the files that a block has seen are proved") {
  const TempDir dir;
  const auto a = file_of(dir / "a", 4 * kMiB);
  const auto b = file_of(dir / "b", 4 * kMiB);
  Windows windows(32 * kMiB, 1);
  windows.start_block();
  windows.view(a, 0, kMiB, 2);
  fs::resize_file(dir / "a", kMiB);
  const Error error = error_of([&] { windows.validate_whole(); });
  CHECK(error.kind() == ErrorKind::kIo);
  CHECK(error.path() == (dir / "a").string());
  windows.start_block();
  windows.view(b, 0, kMiB, 2);
  CHECK_NOTHROW(windows.validate_whole());
}

}  // namespace
}  // namespace reshard::test
