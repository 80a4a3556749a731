// Planning on a file system where every call takes long: few calls per file, and several files read at once.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "reshard/io/local_storage.h"
#include "reshard/io/read_each.h"
#include "reshard/plan/plan.h"
#include "support/errors.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLatency(2);

/// The local file system with latency. Counts calls by path, and the reads that go on at once.
class SlowFiles final : public Files {
 public:
  std::unique_ptr<Source> open(const fs::path& path) override;
  std::vector<DirectoryEntry> list(const fs::path& path) override {
    wait(path);
    {
      const std::lock_guard lock(mutex_);
      most_lists_ = std::max(most_lists_, ++lists_[path]);
    }
    return local_storage().list(path);
  }
  FileKind kind_of(const fs::path& path) override { return wait(path), local_storage().kind_of(path); }
  FileStamp stamp(const fs::path& path) override { return wait(path), local_storage().stamp(path); }
  FileStamp lasting_stamp(const fs::path& path) override { return wait(path), local_storage().lasting_stamp(path); }
  std::optional<std::int64_t> modified_ns(const fs::path& path) override {
    return wait(path), local_storage().modified_ns(path);
  }
  std::uint64_t size_bytes(const fs::path& path) override { return wait(path), local_storage().size_bytes(path); }
  fs::path absolute(const fs::path& path) override { return local_storage().absolute(path); }
  fs::path resolve(const fs::path& path) override { return wait(path), local_storage().resolve(path); }

  /// Calls that named each regular file.
  std::map<fs::path, std::size_t> calls_of_files() const {
    std::map<fs::path, std::size_t> calls;
    for (const auto& [path, count] : calls_)
      if (fs::is_regular_file(path)) calls.emplace(path, count);
    return calls;
  }
  std::size_t calls() const {
    std::size_t all = 0;
    for (const auto& [path, count] : calls_) all += count;
    return all;
  }
  /// Times that one directory was listed.
  std::size_t most_lists() const { return most_lists_; }
  std::size_t most_reads() const { return most_reads_; }
  void begin_read() {
    const std::lock_guard lock(mutex_);
    most_reads_ = std::max(most_reads_, ++reads_);
  }
  void end_read() {
    const std::lock_guard lock(mutex_);
    --reads_;
  }

 private:
  void wait(const fs::path& path) {
    std::this_thread::sleep_for(kLatency);
    const std::lock_guard lock(mutex_);
    ++calls_[path];
  }

  std::mutex mutex_;  // guards all members below
  std::map<fs::path, std::size_t> calls_, lists_;
  std::size_t reads_ = 0, most_reads_ = 0, most_lists_ = 0;
};

class SlowSource final : public Source {
 public:
  SlowSource(SlowFiles& files, std::unique_ptr<Source> source) : files_(files), source_(std::move(source)) {}
  std::uint64_t size_bytes() const override { return source_->size_bytes(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    files_.begin_read();
    std::this_thread::sleep_for(kLatency);
    source_->read_at(offset_bytes, out);
    files_.end_read();
  }

 private:
  SlowFiles& files_;
  std::unique_ptr<Source> source_;
};

std::unique_ptr<Source> SlowFiles::open(const fs::path& path) {
  wait(path);
  return std::make_unique<SlowSource>(*this, local_storage().open(path));
}

/// Plans a conversion of a golden case, and counts its calls.
void check_calls(const std::string& source, RequestFields fields) {
  SlowFiles files;
  if (!fields.config.empty()) fields.config = testdata("golden") / fields.config;
  plan_convert(files, convert_request(testdata("golden") / source, TempDir() / "out", fields));
  CHECK(files.most_lists() == 1);
  for (const auto& [path, calls] : files.calls_of_files()) {
    INFO(path.string());
    CHECK(calls <= 3);
  }
}

TEST_CASE("Planning makes few calls per file") {
  struct Case {
    std::string source;
    RequestFields fields{};
  };
  const RequestFields to_nxd{.layout = "nxd",
                             .tp = 1,
                             .pp = 2,
                             .options = {"qkv-linear=off"},
                             .config = "zero1/nxd-llama-dp2-tp2/original",
                             .with_optimizer = true};
  const std::vector<Case> cases = {
      {"optimum/llama-tp2-pp2/original", {.layout = "ranks", .tp = 2}},
      {"optimum/llama-tp2-pp2/sharded"},
      {"vllm/llama-tp2/sharded"},
      {"dcp/qwen3-fsdp2-r4/sharded", {.config = "dcp/qwen3-fsdp2-r4/original"}},
      {"zero1/nxd-llama-dp2-tp2/checkpoint/step_3", to_nxd},  // weights are compared with master weights
      {"fsdp_ranks/llama-fsdp2-r3/sharded"},
      {"deepspeed/qwen3-zero3-r3/sharded", {.config = "deepspeed/qwen3-zero3-r3/original"}},
  };
  for (const Case& one : cases) {
    INFO(one.source);
    check_calls(one.source, one.fields);
  }
}

TEST_CASE("Planning reads the headers of many files at once") {
  constexpr std::size_t kFiles = 64;
  const TempDir dir;
  nlohmann::json index = {{"metadata", {{"total_size", kFiles}}}};
  for (std::size_t i = 0; i < kFiles; ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, kFiles),
                      tensor = fmt::format("t{}", i);
    write_safetensors(dir / "model" / name, {{tensor, {DType::kU8, {1}, "x"}}});
    index["weight_map"][tensor] = name;
  }
  write_file(dir / "model/model.safetensors.index.json", index.dump());
  SlowFiles files;
  const auto job = plan_convert(files, convert_request(dir / "model", dir / "out", {}));
  CHECK(job->source.files.size() == kFiles);
  CHECK(files.most_reads() > 1);
  CHECK(files.most_reads() <= kMaxReaders);
  CHECK(files.calls() < 3 * kFiles);
}

TEST_CASE("Of many files that are damaged, the first is reported") {
  const TempDir dir;
  for (const int damaged : {1, 5, 9}) {
    for (int i = 1; i <= 9; ++i) {
      const fs::path path = dir / "model" / fmt::format("model-{:05}-of-00009.safetensors", i);
      if (i < damaged)
        write_safetensors(path, {{fmt::format("t{}", i), {DType::kU8, {1}, "x"}}});
      else
        write_file(path, "damaged");
    }
    SlowFiles files;
    const Error error = error_of([&] { plan_convert(files, convert_request(dir / "model", dir / "out", {})); });
    CHECK(error.path() == (dir / "model" / fmt::format("model-{:05}-of-00009.safetensors", damaged)).string());
  }
}

}  // namespace
}  // namespace reshard::test
