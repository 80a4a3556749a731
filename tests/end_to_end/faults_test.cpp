// What fails half-way leaves nothing behind and touches nothing.

#include "support/fault_storage.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Model : Input {
  Model() : Input({.tied = true}, {}, 8) {
    write_file(temp / "model/tokenizer/tokenizer.json", "{}");
    request = shard_request(temp / "model", output, 2, 2);
    before = snapshot(temp.path());
  }
  /// Puts something of every sort where the outputs go, so that replacing it is part of the run.
  void fill_output() {
    shard(shard_request(temp / "model", output, 1));
    write_file(output / "config.json", "old");
    write_file(output / "foreign.txt", "mine");
    fs::remove_all(output / "tokenizer");
    request.force = true;
    before = snapshot(temp.path());
  }
  /// Runs with this storage, which makes it fail, so that nothing is left.
  Error error(FaultStorage& storage, Progress* progress = nullptr) const {
    RunOptions options;
    options.stores = storage;
    options.progress = progress;
    Error error = error_of([&] { shard(request, options); });
    CHECK((snapshot(temp.path()) == before));
    return error;
  }

  fs::path output = temp / "new/deep/out";
  Request request;
  std::map<std::string, std::string> before;
};

/// Calls `action` at every flush of a run.
void at_syncs(FaultStorage& storage, const std::function<void()>& action) {
  storage.before = [action](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kSync) action();
  };
}

/// Runs with the storage failing at each of its operations in turn.
void fail_everywhere(const Model& model, const std::function<std::unique_ptr<Job>()>& plan, ErrorKind kind) {
  std::uint64_t failures = 0;
  for (std::uint64_t number = 0;; ++number) {
    FaultStorage storage;
    storage.fail_at = number;
    storage.kind = kind;
    RunOptions options;
    options.stores = storage;
    options.threads = 1 + static_cast<unsigned>(number % 2);
    bool failed = false;
    try {
      execute(*plan(), options);
    } catch (const Error& error) {
      failed = true;
      INFO("operation " << number << ": " << error.what());
      REQUIRE(error.kind() == kind);
      REQUIRE_THAT(error.what(), Says("made to fail"));
      REQUIRE((snapshot(model.temp.path()) == model.before));
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
  Model model;
  shard(model.request);
  model.before = snapshot(model.temp.path());
  const auto request = consolidate_request(model.output, model / "a/b/whole", {.options = {"max-shard-size=2000"}});
  fail_everywhere(
      model, [&] { return plan_consolidate(request); }, ErrorKind::kIo);
}

TEST_CASE("A disk that pads after some bytes is a no-space error, and nothing is left") {
  const Model model;
  const std::uint64_t all = plan_shard(model.request)->output_bytes();
  for (std::uint64_t bytes = 0; bytes < all; bytes += all / 23) {
    CAPTURE(bytes);
    FaultStorage storage;
    storage.fail_after_bytes = bytes;
    storage.kind = ErrorKind::kNoSpace;
    CHECK(model.error(storage).kind() == ErrorKind::kNoSpace);
  }
}

TEST_CASE("A stop that was asked for before or during the run ends it, and nothing is left") {
  for (const bool existing : {false, true})
    for (const std::uint64_t number : {0, 5, 20, 40}) {
      DYNAMIC_SECTION((existing ? "over old outputs" : "into a new directory") << ", at operation " << number) {
        Model model;
        if (existing) model.fill_output();
        Progress progress;
        FaultStorage storage;
        storage.before = [&](FaultStorage::Operation, std::uint64_t at) {
          if (at >= number) progress.stop = true;
        };
        CHECK(model.error(storage, &progress).kind() == ErrorKind::kInterrupted);
      }
    }
}

TEST_CASE("A stop during the last flush ends the run before anything is published") {
  const Model model;
  Progress progress;
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation, std::uint64_t) {
    if (progress.phase == RunPhase::kFlushing) progress.stop = true;
  };
  CHECK(model.error(storage, &progress).kind() == ErrorKind::kInterrupted);
}

TEST_CASE("What appears in the output directory while the outputs are written is not replaced without force") {
  for (const std::string name :
       {"config.json", "tokenizer/tokenizer.json", "tensor_parallel_shards/mine.txt", "mine.txt"}) {
    DYNAMIC_SECTION(name) {
      Model model;
      if (name != "mine.txt") fs::create_directories(model.output);  // else that appears with it
      FaultStorage storage;
      at_syncs(storage, [&] { write_file(model.output / name, "mine"); });
      model.before["new/"] = model.before["new/deep/"] = model.before["new/deep/out/"] = "";
      model.before["new/deep/out/" + name] = "mine";
      if (const std::size_t slash = name.find('/'); slash != name.npos)
        model.before["new/deep/out/" + name.substr(0, slash + 1)] = "";
      const Error error = model.error(storage);
      if (name != "mine.txt") CHECK_THAT(error.what(), Says("appeared while the outputs were written"));
    }
  }
}

TEST_CASE("An empty output directory that appears while the outputs are written is filled") {
  const Model model;
  FaultStorage storage;
  at_syncs(storage, [&] { fs::create_directories(model.output); });
  RunOptions options;
  options.stores = storage;
  shard(model.request, options);
  CHECK(fs::is_regular_file(model.output / "config.json"));
}

TEST_CASE("A foreign file that appears in the shards folder during the run saves it, even with force") {
  Model model;
  model.fill_output();
  FaultStorage storage;
  at_syncs(storage, [&] { write_file(model.output / "tensor_parallel_shards/mine.txt", "mine"); });
  model.before["new/deep/out/tensor_parallel_shards/mine.txt"] = "mine";
  check_error(model.error(storage), {.says = "mine.txt"});
}

}  // namespace
}  // namespace reshard::test
