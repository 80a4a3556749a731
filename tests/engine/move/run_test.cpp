// How the engine reads: each source byte once; small memory; progress; what stops it.

#include "reshard/engine/move/run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "reshard/engine/publish/staging_mark.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/fault_storage.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A grouped-query llama with all that is cut in some way, and a request for 8 ranks.
struct Sharded {
  explicit Sharded(bool fuse_qkv = false) {
    TinyModel model;
    model.heads = 8;
    model.kv_heads = 4;
    model.attention_bias = model.mlp_bias = true;
    Random random(9);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    request = shard_request(temp / "model", temp / "ranks", 8);
    request.target.options.set_flag("fuse-qkv", fuse_qkv);
  }
  TempDir temp;
  TensorMap tensors;
  Request request;
};

std::uint64_t header_end(const fs::path& file) {
  std::uint64_t header = 0;
  const std::string start = read_file(file).substr(0, 8);
  std::memcpy(&header, start.data(), 8);
  return 8 + header;
}

TEST_CASE("Sharding to eight ranks reads each byte of the source once, not once a rank, in blocks of any size") {
  const auto block_bytes = GENERATE(as<std::uint64_t>(), 8, 100, 1 << 20);
  const Sharded sharded;
  FaultStorage storage;
  const auto job = plan_shard(sharded.request);
  for (const TargetFile& file : job->target.files) {
    fs::create_directories((sharded.temp / "ranks" / file.path).parent_path());
    storage.create(sharded.temp / "ranks" / file.path, file.size_bytes);
  }
  run_program(job->maps(), job->program, sharded.temp / "ranks", {.threads = 3, .stores = storage}, {}, block_bytes);
  const fs::path file = sharded.temp / "model/model.safetensors";
  const auto counts = storage.read_counts(file, fs::file_size(file));
  const auto data = counts.begin() + static_cast<std::ptrdiff_t>(header_end(file));
  CHECK(std::all_of(counts.begin(), data, [](unsigned count) { return count == 0; }));
  CHECK(std::all_of(data, counts.end(), [](unsigned count) { return count == 1; }));
  CHECK(job->program.read_bytes == static_cast<std::uint64_t>(counts.end() - data));
}

TEST_CASE("Consolidating reads each byte that is placed once, and no replica") {
  const Sharded sharded(GENERATE(false, true));
  shard(sharded.request);
  FaultStorage storage;
  const auto job = plan_consolidate(consolidate_request(sharded.temp / "ranks", sharded.temp / "whole"));
  execute(*job, {.threads = 2, .stores = storage});
  std::uint64_t read = 0;
  std::uint64_t twice = 0;
  for (const SourceFile& file : job->source.files)
    for (const unsigned count : storage.read_counts(file.path, file.size_bytes)) {
      read += count;
      twice += count > 1;
    }
  CHECK(twice == 0);
  CHECK(read == job->program.read_bytes + job->program.check_bytes);
  CHECK(job->program.check_bytes > 0);
  // A norm is read on every rank: placed from one, compared on the others.
  for (const StoredTensor& tensor : job->source.stored) {
    if (tensor.name.text() != "model.norm.weight") continue;
    const SourceFile& file = job->source.files[tensor.file];
    CHECK(storage.read_counts(file.path, file.size_bytes)[tensor.offset_bytes] == 1u);
  }
}

TEST_CASE("Each byte of the outputs is written once") {
  const Sharded sharded;
  FaultStorage storage;
  const auto job = plan_shard(sharded.request);
  execute(*job, {.stores = storage});
  CHECK(storage.written_bytes() == job->output_bytes() + staging_mark(*job).size());
  const std::size_t outputs = job->target.files.size() + job->text_files.size() + job->copied_files.size();
  CHECK(storage.count(FaultStorage::Operation::kCreate) == outputs + 1);  // and the mark, which outlives no crash
  CHECK(storage.count(FaultStorage::Operation::kSync) == outputs);
}

TEST_CASE("A job that was moved and copied after it was planned does the same") {
  const Sharded sharded;
  shard(sharded.request);
  const auto expected = snapshot(sharded.temp / "ranks");
  fs::remove_all(sharded.temp / "ranks");
  auto planned = plan_shard(sharded.request);
  const Job moved = std::move(*planned);
  planned.reset();
  execute(Job(moved), unsynced());
  CHECK((snapshot(sharded.temp / "ranks") == expected));
}

TEST_CASE("Progress ends at the bytes that the program writes") {
  const Sharded sharded;
  Progress progress;
  const auto job = plan_shard(sharded.request);
  execute(*job, {.threads = GENERATE(1u, 3u), .progress = &progress});
  CHECK(progress.done_bytes == job->program.write_bytes);
  CHECK(progress.phase == RunPhase::kPublishing);
}

TEST_CASE("A visitor sees every tensor whole, block by block, whatever the threads") {
  const Sharded sharded;
  shard(sharded.request);
  const auto inspection = read_checkpoint(sharded.temp / "ranks", {ConfigUse::kLenient});
  const Program program = make_reading_program(inspection.map);
  std::vector<std::map<std::uint64_t, std::string>> blocks(program.transfers.size());
  std::mutex mutex;
  const ProgramMaps maps{&inspection.map};
  run_program(
      maps, program, {}, {.threads = 3},
      [&](const VisitedBlock& seen) {
        const std::lock_guard lock(mutex);
        const std::string bytes(reinterpret_cast<const char*>(seen.bytes.data()), seen.bytes.size());
        CHECK(blocks[seen.transfer].emplace(seen.block, bytes).second);
      },
      96);
  std::size_t most = 0;
  for (std::size_t t = 0; t < blocks.size(); ++t) {
    std::string joined;
    for (const auto& [number, bytes] : blocks[t]) joined += bytes;
    const std::string& tensor = program.transfers[t].tensor(maps).name;
    INFO(tensor);
    CHECK((joined == sharded.tensors.at(tensor).bytes));
    most = std::max(most, blocks[t].size());
  }
  CHECK(most > 4);
}

TEST_CASE("What lies in one piece is copied from file to file, where no checksums are wanted") {
  const auto format = GENERATE(Format::kSafetensors, Format::kPytorch);
  const Sharded sharded;
  Request request = sharded.request;
  request.target.format = format;
  std::uint64_t companions_bytes = 0;
  const auto job = plan_shard(request);
  for (const CopiedFile& file : job->copied_files) companions_bytes += fs::file_size(file.source);
  for (const bool in_kernel : {true, false}) {
    request.output_directory = sharded.temp / (in_kernel ? "copied" : "read");
    FaultStorage storage;
    storage.copies_in_kernel = in_kernel;
    shard(request, {.threads = 1, .stores = storage});
    if (!in_kernel)
      CHECK(storage.copied_bytes() == 0);
    else if (format == Format::kSafetensors)
      CHECK(storage.copied_bytes() > companions_bytes);
    else
      CHECK(storage.copied_bytes() == companions_bytes);  // of the weights a checksum is wanted
  }
  CHECK((snapshot(sharded.temp / "copied") == snapshot(sharded.temp / "read")));
}

TEST_CASE("A file system that tells of lost writes only at the end of a file is heard") {
  const Sharded sharded;
  FaultStorage storage;
  storage.before = [](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kFinish) throw Error(ErrorKind::kNoSpace, "over quota, it now says");
  };
  const auto job = plan_shard(sharded.request);
  check_refused([&] { execute(*job, {.stores = storage}); },
                {.kind = ErrorKind::kNoSpace, .unwritten = sharded.temp / "ranks"});
  // Before any shard was synced.
  CHECK(storage.count(FaultStorage::Operation::kSync) == job->copied_files.size() + job->text_files.size());
}

TEST_CASE("A lost write of any file is heard, though nobody waits for the disk") {
  const Sharded sharded;
  const auto job = plan_shard(sharded.request);
  FaultStorage whole;
  execute(*job, {.threads = 1, .stores = whole, .sync = false});
  fs::remove_all(sharded.temp / "ranks");
  const std::uint64_t finishes = whole.count(FaultStorage::Operation::kFinish);
  CHECK(finishes >= job->target.files.size() + job->copied_files.size() + job->text_files.size());
  for (std::uint64_t failing = 0; failing < finishes; ++failing) {
    FaultStorage storage;
    std::uint64_t finished = 0;
    storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
      if (operation == FaultStorage::Operation::kFinish && finished++ == failing)
        throw Error(ErrorKind::kNoSpace, "over quota");
    };
    INFO(failing << " of " << finishes);
    check_refused([&] { execute(*job, {.threads = 1, .stores = storage, .sync = false}); },
                  {.kind = ErrorKind::kNoSpace, .unwritten = sharded.temp / "ranks"});
  }
}

TEST_CASE("Too little memory is a usage error and leaves nothing") {
  const Sharded sharded;
  const auto before = snapshot(sharded.temp.path());
  check_refused([&] { shard(sharded.request, {.max_memory_bytes = kMinMemoryBytes - 1}); },
                {.kind = ErrorKind::kUsage, .hint = "4.00 MiB"});
  CHECK((snapshot(sharded.temp.path()) == before));
}

TEST_CASE("Rows larger than a block are moved in parts") {
  const TempDir temp;
  TinyModel model;
  model.hidden = 700'000;  // a row of the embedding has 1.4 MB, a block at most 1 MiB
  model.heads = model.kv_heads = 2;
  model.head_dim = 2;
  model.intermediate = 2;
  model.vocab = 2;
  model.layers = 1;
  Random random(1);
  TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  FaultStorage storage;
  const RunOptions options{.threads = 1, .max_memory_bytes = kMinMemoryBytes, .stores = storage};
  shard(shard_request(temp / "model", temp / "ranks", 2), options);
  std::uint64_t longest = 0;
  for (const auto& range : storage.reads(temp / "model/model.safetensors"))
    longest = std::max(longest, range.end_bytes - range.begin_bytes);
  CHECK(longest <= kMinMemoryBytes / 4);
  consolidate(consolidate_request(temp / "ranks", temp / "whole"), options);
  CHECK((read_model(temp / "whole") == tensors));
}

TEST_CASE("A source that is replaced or written to after its header was read is an I/O error, and nothing is left") {
  // Another file of the same length under its name, the same file written to, before the first byte and after some.
  const auto format = GENERATE(Format::kSafetensors, Format::kXser);
  const bool replaced = GENERATE(true, false), at_once = GENERATE(true, false);
  CAPTURE(name(format), replaced, at_once);
  const TempDir temp;
  Random random(3);
  write_model(temp / "model", {}, random_tensors({}, random), 2);
  Request request = shard_request(temp / "model", temp / "shards", 2);
  request.target.format = format;
  shard(request);
  const auto job = plan_consolidate(consolidate_request(temp / "shards", temp / "whole"));
  const fs::path changed = job->source.files.back().path;
  FaultStorage storage;
  bool done = false;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (done || (!at_once && operation != FaultStorage::Operation::kFinish)) return;
    done = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a file system's clock is coarse
    const fs::path written = replaced ? temp / "other" : changed;
    write_file(written, read_file(changed));
    fs::rename(written, changed);
  };
  check_refused([&] { execute(*job, {.threads = 1, .stores = storage, .sync = false}); },
                {.kind = ErrorKind::kIo,
                 .path = changed,
                 .says = "was replaced or modified after its header was read",
                 .unwritten = temp / "whole"});
  CHECK(done);
}

TEST_CASE("The disk begins with what is written while the run goes on, and a full one ends it") {
  const TempDir temp;
  TinyModel model;
  model.hidden = 1024;
  model.head_dim = 256;
  model.vocab = 10'000;  // an embedding of 20 MB
  Random random(3);
  write_model(temp / "model", model, random_tensors(model, random));
  FaultStorage storage;
  shard(shard_request(temp / "model", temp / "ranks"), {.stores = storage});
  CHECK(storage.count(FaultStorage::Operation::kWriteBack) > 0);

  storage.before = [](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kWriteBack) throw Error(ErrorKind::kNoSpace, "cannot write back");
  };
  const Request full = shard_request(temp / "model", temp / "full");
  check_refused([&] { shard(full, {.stores = storage}); }, {.kind = ErrorKind::kNoSpace, .unwritten = temp / "full"});
  CHECK_NOTHROW(shard(full, {.stores = storage, .sync = false}));  // then it is left to the system
}

TEST_CASE("Without sync nothing is flushed, and the outputs are the same") {
  const Sharded sharded;
  FaultStorage storage;
  shard(sharded.request, RunOptions());
  const auto flushed = snapshot(sharded.temp / "ranks");
  fs::remove_all(sharded.temp / "ranks");
  shard(sharded.request, {.stores = storage, .sync = false});
  CHECK((snapshot(sharded.temp / "ranks") == flushed));
  CHECK(storage.count(FaultStorage::Operation::kSync) == 0);
  CHECK(storage.count(FaultStorage::Operation::kCreate) > 8);
}

TEST_CASE("A source that shrinks after it was planned is an I/O error, and nothing is left") {
  const Sharded sharded;
  const auto job = plan_shard(sharded.request);
  const fs::path file = sharded.temp / "model/model.safetensors";
  fs::resize_file(file, fs::file_size(file) / 2);
  const auto before = snapshot(sharded.temp.path());
  check_refused([&] { execute(*job, unsynced()); }, {.kind = ErrorKind::kIo, .path = file});
  CHECK((snapshot(sharded.temp.path()) == before));
}

}  // namespace
}  // namespace reshard::test
