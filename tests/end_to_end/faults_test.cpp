// What fails half-way leaves nothing behind and touches nothing.

#include "support/fault_storage.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

class Model {
 public:
  Model() {
    TinyModel tiny;
    tiny.tied = true;
    Random random(8);
    write_model(temp / "model", tiny, random_tensors(tiny, random));
    write_file(temp / "model/sub/tokenizer.json", "{}");
    request = shard_request(temp / "model", temp / "new/deep/out", 2, 2);
  }
  /// Puts something of every sort where the outputs go, so that replacing it is part of the run.
  void fill_output() {
    shard(shard_request(temp / "model", temp / "new/deep/out", 1));
    write_file(temp / "new/deep/out/config.json", "old");
    write_file(temp / "new/deep/out/foreign.txt", "mine");
    fs::remove(temp / "new/deep/out/sub/tokenizer.json");
    fs::remove(temp / "new/deep/out/sub");
    request.force = true;
  }
  TempDir temp;
  ShardRequest request;
};

/// Runs with the storage failing at each of its operations in turn.
void fail_everywhere(const Model& model, const std::function<std::unique_ptr<Job>()>& plan, ErrorKind kind) {
  const auto before = snapshot(model.temp.path());
  std::uint64_t failures = 0;
  for (std::uint64_t number = 0;; ++number) {
    FaultStorage storage;
    storage.fail_at = number;
    storage.kind = kind;
    RunOptions options;
    options.storage = &storage;
    options.threads = 1 + static_cast<unsigned>(number % 2);
    bool failed = false;
    try {
      execute(*plan(), options);
    } catch (const Error& error) {
      failed = true;
      INFO("operation " << number << ": " << error.what());
      REQUIRE(error.kind() == kind);
      REQUIRE_THAT(error.what(), Says("made to fail"));
      REQUIRE((snapshot(model.temp.path()) == before));
    }
    if (!failed) break;
    ++failures;
  }
  CHECK(failures > 40);
}

TEST_CASE("Whichever operation fails while sharding into a new directory, nothing is left") {
  const Model model;
  fail_everywhere(
      model, [&] { return plan_shard(model.request); }, ErrorKind::kIo);
}

TEST_CASE("Whichever operation fails while sharding over an old output, it stays as it was") {
  Model model;
  model.fill_output();
  fail_everywhere(
      model, [&] { return plan_shard(model.request); }, ErrorKind::kNoSpace);
}

TEST_CASE("Whichever operation fails while consolidating, nothing is left") {
  const Model model;
  shard(model.request);
  ConsolidateRequest request;
  request.source.path = model.temp / "new/deep/out";
  request.output_directory = model.temp / "a/b/whole";
  request.target.options.set_number("max-shard-size", 2000);
  fail_everywhere(
      model, [&] { return plan_consolidate(request); }, ErrorKind::kIo);
}

TEST_CASE("A disk that pads after some bytes is a no-space error, and nothing is left") {
  const Model model;
  const auto before = snapshot(model.temp.path());
  const std::uint64_t all = plan_shard(model.request)->output_bytes();
  for (std::uint64_t bytes = 0; bytes < all; bytes += all / 23) {
    DYNAMIC_SECTION(bytes << " bytes") {
      FaultStorage storage;
      storage.fail_after_bytes = bytes;
      storage.kind = ErrorKind::kNoSpace;
      RunOptions options;
      options.storage = &storage;
      CHECK(error_of([&] { shard(model.request, options); }).kind() == ErrorKind::kNoSpace);
      CHECK((snapshot(model.temp.path()) == before));
    }
  }
}

TEST_CASE("A stop that was asked for before or during the run ends it, and nothing is left") {
  for (const bool existing : {false, true})
    for (const std::uint64_t number : {0, 5, 20, 40}) {
      DYNAMIC_SECTION((existing ? "over old outputs" : "into a new directory") << ", at operation " << number) {
        Model model;
        if (existing) model.fill_output();
        const auto before = snapshot(model.temp.path());
        Progress progress;
        FaultStorage storage;
        storage.before = [&](FaultStorage::Operation, std::uint64_t at) {
          if (at >= number) progress.stop = true;
        };
        RunOptions options;
        options.storage = &storage;
        options.progress = &progress;
        CHECK(error_of([&] { shard(model.request, options); }).kind() == ErrorKind::kInterrupted);
        CHECK((snapshot(model.temp.path()) == before));
      }
    }
}

TEST_CASE("A stop during the last flush ends the run before anything is published") {
  const Model model;
  const auto before = snapshot(model.temp.path());
  Progress progress;
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation, std::uint64_t) {
    if (progress.phase == RunPhase::kFlushing) progress.stop = true;
  };
  RunOptions options;
  options.storage = &storage;
  options.progress = &progress;
  CHECK(error_of([&] { shard(model.request, options); }).kind() == ErrorKind::kInterrupted);
  CHECK((snapshot(model.temp.path()) == before));
}

TEST_CASE("A file that appears while the outputs are written is not replaced without force") {
  const Model model;
  fs::create_directories(model.temp / "new/deep/out");
  for (const std::string name : {"config.json", "sub/tokenizer.json", "tensor_parallel_shards/mine.txt"}) {
    DYNAMIC_SECTION(name) {
      FaultStorage storage;
      const fs::path appearing = model.temp / "new/deep/out" / name;
      storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
        if (operation == FaultStorage::Operation::kSync) write_file(appearing, "mine");
      };
      RunOptions options;
      options.storage = &storage;
      check_refused([&] { shard(model.request, options); }, {.says = "appeared while the outputs were written"});
      CHECK(read_file(appearing) == "mine");
      fs::remove(appearing);
      if (appearing.parent_path() != model.temp / "new/deep/out") fs::remove(appearing.parent_path());
      CHECK(fs::is_empty(model.temp / "new/deep/out"));
    }
  }
}

TEST_CASE("An output directory that appears while the outputs are written is left alone") {
  const Model model;
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kSync) write_file(model.temp / "new/deep/out/mine.txt", "mine");
  };
  RunOptions options;
  options.storage = &storage;
  CHECK_THROWS_AS(shard(model.request, options), Error);
  const auto after = snapshot(model.temp / "new");
  CHECK(after == std::map<std::string, std::string>{{"deep/", ""}, {"deep/out/", ""}, {"deep/out/mine.txt", "mine"}});
}

TEST_CASE("An empty output directory that appears while the outputs are written is filled") {
  const Model model;
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kSync) fs::create_directories(model.temp / "new/deep/out");
  };
  RunOptions options;
  options.storage = &storage;
  shard(model.request, options);
  CHECK(fs::is_regular_file(model.temp / "new/deep/out/config.json"));
}

TEST_CASE("A foreign file that appears in the shards folder during the run saves it, even with force") {
  Model model;
  model.fill_output();
  auto expected = snapshot(model.temp.path());
  expected["new/deep/out/tensor_parallel_shards/mine.txt"] = "mine";
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kSync)
      write_file(model.temp / "new/deep/out/tensor_parallel_shards/mine.txt", "mine");
  };
  RunOptions options;
  options.storage = &storage;
  check_refused([&] { shard(model.request, options); }, {.says = "mine.txt"});
  CHECK((snapshot(model.temp.path()) == expected));
}

}  // namespace
}  // namespace reshard::test
