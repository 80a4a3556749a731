#include "reshard/io/zstd_source.h"

#include <atomic>
#include <random>
#include <thread>

#include "reshard/io/memory_files.h"
#include "reshard/io/zstd_idle.h"
#include "support/refusals.h"
#include "support/zstd_frames.h"

namespace reshard::test {
namespace {

std::string random_content(std::size_t size) {
  std::mt19937_64 random(size);
  std::string content(size, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

/// A file with a frame in the middle.
struct Compressed {
  explicit Compressed(const std::string& bytes)
      : content("before" + bytes + "behind"), frame{6, bytes.size()}, file(content) {}

  ZstdEnds ends(std::uint64_t max_bytes = 1 << 20) const { return read_zstd_ends(file, frame, 100, max_bytes, "d/f"); }
  std::unique_ptr<Source> open(std::uint64_t size_bytes) const {
    return open_zstd(std::make_unique<MemorySource>(content), frame, size_bytes, "d/f");
  }

  std::string content;
  ZstdFrame frame;
  MemorySource file;
};

std::string read(const Source& source, std::uint64_t offset_bytes, std::size_t bytes) {
  std::string out(bytes, '\0');
  source.read_at(offset_bytes, std::as_writable_bytes(std::span(out)));
  return out;
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("The size and the ends of what a zstd frame decodes to are found") {
  for (const std::size_t size : {0, 1, 99, 100, 101, 250, 100'000, 700'000}) {
    CAPTURE(size);
    const std::string content = random_content(size);
    const ZstdEnds ends = Compressed(zstd_frame(content)).ends();
    CHECK(ends.size_bytes == size);
    CHECK(text(ends.head) == content.substr(0, 100));
    CHECK(text(ends.tail) == content.substr(size - std::min<std::size_t>(size, 100)));
  }
}

TEST_CASE("What a zstd frame decodes to is read in any order, by several threads") {
  const std::string content = random_content(700'000);
  const Compressed compressed(zstd_frame(content));
  const auto source = compressed.open(content.size());
  CHECK(source->size_bytes() == content.size());
  CHECK(read(*source, 0, 10) == content.substr(0, 10));
  CHECK(read(*source, 600'000, 100'000) == content.substr(600'000));
  CHECK(read(*source, 5, 300'000) == content.substr(5, 300'000));
  CHECK(read(*source, 700'000, 0).empty());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 20; ++i) {
        const std::size_t at = random() % content.size(), bytes = random() % (content.size() - at);
        if (read(*source, at, bytes) != content.substr(at, bytes)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("Many sources of zstd frames share a few decoders") {
  const std::string content = random_content(150'000);
  const Compressed compressed(zstd_frame(content));
  std::vector<std::unique_ptr<Source>> sources;
  for (int i = 0; i < 50; ++i) sources.push_back(compressed.open(content.size()));
  for (const std::size_t at : {0, 50'000, 100'000})
    for (const auto& source : sources) CHECK(read(*source, at, 50'000) == content.substr(at, 50'000));
}

TEST_CASE("Decoders that wait keep a bounded amount of memory") {
  const std::string content = random_content(16 << 20);
  const Compressed compressed(zstd_frame(content, 24));  // each has a window of 16 MiB
  std::vector<std::unique_ptr<Source>> sources;
  for (int i = 0; i < 6; ++i) {
    sources.push_back(compressed.open(content.size()));
    CHECK(read(*sources.back(), 0, 100) == content.substr(0, 100));
    CHECK(idle_zstd_bytes() <= kMaxIdleZstdBytes);
  }
  CHECK(idle_zstd_bytes() > kMaxIdleZstdBytes / 2);
  CHECK(read(*sources[0], 100, 100) == content.substr(100, 100));  // whose decoder is gone
  sources.clear();
  CHECK(idle_zstd_bytes() == 0);
}

TEST_CASE("A zstd frame that is damaged, ends early or late, or decodes to too much is refused") {
  const std::string content = random_content(300'000);
  std::string damaged = zstd_frame(content);
  damaged[6] = '\x7';  // the reserved kind of block
  Compressed cut_off(zstd_frame(content)), longer(zstd_frame(content));
  cut_off.frame.length_bytes -= 1;
  longer.frame.length_bytes += 1;
  check_refusals<Compressed>(
      [](const Compressed& compressed) { compressed.ends(); }, {.path = "d/f"},
      {{"a byte of a block's header", Compressed(damaged), {.says = "its zstd frame is damaged"}},
       {"no frame", Compressed(std::string(100, 'x')), {.says = "its zstd frame is damaged"}},
       {"cut off", cut_off, {.says = "continues after its range"}},
       {"something behind it", longer, {.says = "ends before its range"}},
       {"a bomb", Compressed(zstd_bomb(1000)), {.says = "decodes to more than 1048576 bytes"}},
       {"a large window",
        Compressed(zstd_frame(content, 27)),
        {.kind = ErrorKind::kUnsupported, .says = "more memory to decode"}}});
  const auto shorter = Compressed(zstd_frame(content)).open(400'000);  // than it was
  check_refused([&] { read(*shorter, 250'000, 100'000); }, {.kind = ErrorKind::kIo});
}

}  // namespace
}  // namespace reshard::test
