// Runs that were killed or failed, and go on: the bytes of one run, none of them written twice.

#include <algorithm>
#include <atomic>
#include <deque>

#include "engine/publish/stopped_run.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/staging_mark.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/plan/plan.h"
#include "support/page_cache_storage.h"
#include "support/refusals.h"
#include "support/thread_ranks.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Runs `job` until `storage` throws "killed", and puts back what the run's destructor removes.
/// \returns the staging directory; empty if the run came to its end, or had none.
template <typename KillingStorage>
fs::path root_of_killed(const Job& job, KillingStorage& storage) {
  fs::path root, saved;
  {
    JobRun run(job, journalled(storage));
    try {
      run.prepare();
      ShareReport report = run.run();
      run.finish(report);
      run.publish(std::move(report));
    } catch (const Error& error) {
      CHECK(error.message() == "killed");
      root = run.prepared().root;
      saved = root.parent_path() / "saved";
      // Hard links are not enough: a later run writes to the files.
      if (!root.empty()) fs::copy(root, saved, fs::copy_options::recursive);
    }
    storage.before = {};
  }
  if (!root.empty()) fs::rename(saved, root);
  return root;
}

/// Compares the outputs, and removes them and what dead runs have left.
void check_and_remove(const Job& job, const std::map<std::string, std::string>& expected) {
  CHECK((snapshot(job.output_directory) == expected));
  fs::remove_all(job.output_directory);
  remove_dead_runs(local_storage(), job);
}

TEST_CASE("A run that is killed at any point goes on, with the bytes of one run, and writes none twice that it has") {
  const Jobs jobs;
  const std::uint64_t seed = GENERATE(from_range(seeds(5)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const auto& [what, plan] = jobs.planners[pick(random, 0, jobs.planners.size() - 1)];
  INFO(what);
  const auto job = plan(jobs.output);
  job->manifest = random() % 2 == 0;
  const auto expected = written_by(*job), before = snapshot(jobs.temp.path());
  FaultStorage whole;
  CHECK(root_of_killed(*job, whole).empty());
  check_and_remove(*job, expected);
  bool any_resumed = false;
  for (std::uint64_t at = 1; at < whole.operations(); at += pick(random, 1, whole.operations() / 8)) {
    CAPTURE(at);
    FaultStorage storage;
    storage.before = [&](FaultStorage::Operation, std::uint64_t number) {
      if (number >= at) throw Error(ErrorKind::kInternal, "killed");
    };
    const fs::path root = root_of_killed(*job, storage);
    REQUIRE_FALSE(fs::exists(jobs.output));
    const std::uint64_t had = root.empty() ? 0 : journalled_bytes(root);
    CHECK(execute(*job, resuming()).resumed_bytes == had);
    any_resumed = any_resumed || had > 0;
    check_and_remove(*job, expected);
    REQUIRE((snapshot(jobs.temp.path()) == before));
  }
  CHECK(any_resumed);
}

TEST_CASE("What a journal tells of is on the disk: a run goes on after the machine has lost its power") {
  const Jobs jobs;
  const auto& [what, plan] = jobs.planners.at(GENERATE(range<std::size_t>(0, Jobs::kCount)));
  CAPTURE(what);
  const auto job = plan(jobs.output);
  const auto expected = written_by(*job);
  bool any_resumed = false;
  for (const std::uint64_t at : {20u, 40u, 60u, 90u, 150u}) {
    CAPTURE(at);
    fs::path root;
    {
      PageCacheStorage storage(4096);
      storage.keeps_closed = true;
      std::atomic<std::uint64_t> operations = 0;  // of several threads
      storage.before = [&] {
        if (++operations >= at) throw Error(ErrorKind::kInternal, "killed");
      };
      root = root_of_killed(*job, storage);
    }
    if (!root.empty()) any_resumed = execute(*job, resuming()).resumed_bytes > 0 || any_resumed;
    check_and_remove(*job, expected);
  }
  CHECK(any_resumed);
}

TEST_CASE("What a flush has lost is written again, though the disk says so only once") {
  const Jobs jobs;
  const auto& [what, plan] = jobs.planners.at(GENERATE(range<std::size_t>(0, Jobs::kCount)));
  CAPTURE(what);
  const auto job = plan(jobs.output);
  const auto expected = written_by(*job);
  for (std::uint64_t at = 3; at < 40; at += 3) {
    CAPTURE(at);
    PageCacheStorage storage(4096);
    storage.keeps_closed = true;
    std::atomic<std::uint64_t> flushes = 0;  // of several threads
    storage.loses = [&] { return ++flushes == at; };
    const auto run = [&](Storage& on) {
      RunOptions options = resuming(on);
      options.tuning.unit_bytes = 5000;
      if (at % 2 == 0) options.journal_interval = 1h;  // all units wait until the run has failed
      execute(*job, options);
    };
    try {
      run(storage);
    } catch (const Error& error) {
      CHECK(error.message() == "made to be lost");
      run(local_storage());
    }
    check_and_remove(*job, expected);
  }
}

/// The bytes of tensors that were written to the files of a run's staging directory, each as often as it was.
std::uint64_t written_tensor_bytes(const FaultStorage& storage, const Job& job, const fs::path& root) {
  std::uint64_t written = 0;
  for (const TargetFile& file : job.target.files) {
    std::vector<char> is_tensor(file.size_bytes);
    for (std::uint32_t i = file.first_stored; i < file.first_stored + file.stored_count; ++i) {
      const StoredTensor& tensor = job.target.stored[i];
      std::fill_n(is_tensor.begin() + static_cast<std::ptrdiff_t>(tensor.offset_bytes), tensor.size_bytes(), 1);
    }
    for (const auto& [begin, end] : storage.writes(root / file.path))
      written += static_cast<std::uint64_t>(std::count(is_tensor.begin() + static_cast<std::ptrdiff_t>(begin),
                                                       is_tensor.begin() + static_cast<std::ptrdiff_t>(end), 1));
  }
  return written;
}

TEST_CASE("No byte is read or written again that is in the journal, nor counted as read") {
  const Jobs jobs;
  const auto& [what, plan] = jobs.planners[GENERATE(0u, 1u, 2u, 3u, 5u)];
  CAPTURE(what);
  const auto job = plan(jobs.output);
  FaultStorage first;
  fail_after_journals(first, jobs.temp.path(), 3, ErrorKind::kNoSpace);
  check_refused([&] { execute(*job, journalled(first)); },
                {.kind = ErrorKind::kNoSpace, .hint = "`resume` continues from there"});
  const auto staging = staging_in(jobs.temp.path());
  REQUIRE(staging);
  const std::uint64_t had = journalled_bytes(*staging);
  CHECK(had > 0);
  FaultStorage second;
  const RunResult result = execute(*job, resuming(second));
  CHECK(result.resumed_bytes == had);
  CHECK(result.read_bytes < job->program.read_bytes + job->program.check_bytes);
  CHECK(written_tensor_bytes(second, *job, *staging) == job->program.write_bytes - had);
  std::uint64_t read = 0;
  for (const SourceFile& file : job->source.files) {
    const auto counts = second.read_counts(file.path, file.size_bytes);
    read += std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  const double left = 1 - static_cast<double>(had) / static_cast<double>(job->program.write_bytes);
  const auto all_read = static_cast<double>(job->program.read_bytes + job->program.check_bytes);
  CHECK(static_cast<double>(read) < all_read * (left + 0.25));
}

TEST_CASE("A run goes on with another number of ranks, threads and memory") {
  const Jobs jobs;
  const auto& [what, plan] = jobs.planners.at(GENERATE(range<std::size_t>(0, Jobs::kCount)));
  CAPTURE(what);
  const auto job = plan(jobs.output);
  job->manifest = true;
  const auto expected = written_by(*job);
  RunResult result;
  const auto run = [&](std::vector<FaultStorage>& storages) {
    const auto size = static_cast<std::uint32_t>(storages.size());
    return run_ranks(size, [&](Together& together) {
      RunOptions options = resuming(storages[together.rank()]);
      options.threads = size % 3 + 1;
      options.tuning.page_bytes = size == 3 ? kLargestPageBytes : 64;
      const RunResult one = execute(*job, options, together);
      if (together.leads()) result = one;
    });
  };
  std::vector<FaultStorage> first(3), second(2), third(1);
  for (FaultStorage& storage : first) fail_after_journals(storage, jobs.temp.path(), 6, ErrorKind::kNoSpace);
  const auto failed = run(first);
  REQUIRE(failed[0]);
  CHECK(failed[0]->kind() == ErrorKind::kNoSpace);
  REQUIRE(staging_in(jobs.temp.path()));
  fail_after_journals(second[1], jobs.temp.path(), 4, ErrorKind::kIo);
  if (const auto again = run(second); again[0]) {
    CHECK(again[0]->kind() == ErrorKind::kIo);
    check_none_threw(run(third));
    CHECK(result.resumed_bytes > 0);
  }
  CHECK((snapshot(jobs.output) == expected));
}

TEST_CASE("Ranks of machines whose caches differ go on, with the bytes of one run") {
  const Jobs jobs;
  bool any_resumed = false;
  for (const auto& [what, plan] : jobs.planners) {
    CAPTURE(what);
    const auto job = plan(jobs.output);
    const auto expected = written_by(*job);
    std::atomic<bool> fails{false};
    RunResult result;
    const auto run = [&](std::uint32_t size, const std::function<void()>& before) {
      std::deque<PageCacheStorage> machines;
      for (std::uint32_t rank = 0; rank < size; ++rank) machines.emplace_back(512);
      machines.back().before = before;
      return run_ranks(size, [&](Together& together) {
        RunOptions options = resuming(machines[together.rank()]);
        options.tuning.page_bytes = 512;
        const RunResult one = execute(*job, options, together);
        if (together.leads()) result = one;
      });
    };
    const auto failed = run(3, [&] {
      const auto staging = staging_in(jobs.temp.path());
      if (staging && journal_files(local_storage(), *staging).size() >= 4) fails = true;
      if (fails) throw Error(ErrorKind::kNoSpace, "made to fail");
    });
    if (failed[0]) CHECK(failed[0]->kind() == ErrorKind::kNoSpace);
    if (failed[0]) CHECK_FALSE(run(2, {})[0]);
    any_resumed = any_resumed || result.resumed_bytes > 0;
    check_and_remove(*job, expected);
  }
  CHECK(any_resumed);
}

TEST_CASE("A run that has other sources or options does not go on, and says which") {
  Stopped stopped;
  const fs::path model = stopped.jobs.temp / "model";
  Request request = shard_request(model, stopped.jobs.output, 2, 2);
  const auto other = plan_shard(request);
  const Error options = stopped.resume(*other);
  check_error(options, {.kind = ErrorKind::kUsage, .path = stopped.root, .hint = "`clean`"});
  CHECK(options.message() == "the run that left this had tp 4 instead of 2");

  // Runs that write other ranks into the same directory are none of its business.
  other->shares_directory = true;
  CHECK_FALSE(find_resumable(local_storage(), *other, journal_header(*other, journalled(local_storage()), 1)));

  request.target.tp = 4;
  request.target.format = Format::kPytorch;
  CHECK(stopped.resume(*plan_shard(request)).message() ==
        "the run that left this had format safetensors instead of pytorch");

  write_file(model / "tokenizer.json", "{}");
  CHECK(stopped.resume(*stopped.jobs.plan()).message() ==
        "the run that left this read another tokenizer.json: the source has other files now");
  fs::remove(model / "tokenizer.json");

  const fs::path file = model / "model-00002-of-00002.safetensors";
  fs::last_write_time(file, fs::last_write_time(file) + 1s);
  const Error sources = stopped.resume(*stopped.jobs.plan());
  CHECK(sources.kind() == ErrorKind::kBadInput);
  CHECK(sources.message() ==
        "the run that left this read another model-00002-of-00002.safetensors: it was replaced or modified since");
  CHECK(fs::exists(stopped.root));
}

TEST_CASE("A journal that is torn is as good as none, and one of another version is refused") {
  Stopped stopped;
  const std::string last = read_file(stopped.root / stopped.journals().at(0));
  for (std::size_t size = 0; size < last.size(); size += 13) CHECK_FALSE(parse_journal(last.substr(0, size)));
  std::string edited = last;
  edited[last.size() / 2] ^= 1;
  CHECK_FALSE(parse_journal(edited));
  CHECK(earlier_runs(local_storage(), *stopped.job).at(0).journal == JournalFound::kWhole);
  for (const std::string& name : stopped.journals()) write_file(stopped.root / name, "reshard journal 4\nnonsense");
  CHECK(earlier_runs(local_storage(), *stopped.job).at(0).journal == JournalFound::kNone);
  RunOptions options = resuming();
  std::vector<std::string> notes;
  if (GENERATE(false, true)) options.on_note = [&](const std::string& note) { notes.push_back(note); };
  const RunResult result = execute(*stopped.job, options);
  CHECK(result.resumed_bytes == 0);
  CHECK_FALSE(fs::exists(stopped.root));  // nothing can go on from it
  for (const Note& note : result.notes) notes.push_back(note);
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[0], Says(stopped.root.string() + ": deleted"));
  CHECK(notes[1] == "nothing to resume: starting from scratch");
  CHECK(result.notes.size() == (options.on_note ? 0 : 2));

  std::string body = last.substr(0, last.size() - 64);
  body.replace(body.find("journal 4"), 9, "journal 5");
  const std::string digest = to_hex(sha256(std::as_bytes(std::span(body))));
  CHECK(error_of([&] { parse_journal(body + digest); }).kind() == ErrorKind::kUnsupported);
}

TEST_CASE("A file in what is left that no run of the job made is told, and not published") {
  Stopped stopped;
  write_file(stopped.root / "notes.txt", "mine");
  check_error(stopped.resume(*stopped.job), {.path = stopped.root / "notes.txt"});
  CHECK(read_file(stopped.root / "notes.txt") == "mine");
}

TEST_CASE("Fragments that do not fit are an error that leaves all as it is, and torn ones take their units with them") {
  Stopped stopped;
  WireWriter wire;
  wire.add(1000000);  // no such file
  wire.add(0);
  wire.add("x");
  const fs::path foreign = stopped.root / ".journal-0-0-fragments-0";
  write_file(foreign, sealed("reshard fragments 1\n", wire.bytes()));
  check_error(stopped.resume(*stopped.job), {.path = foreign});
  REQUIRE(fs::exists(stopped.root));
  CHECK(has_journal(local_storage(), stopped.root));
  fs::remove(foreign);

  for (const std::string& name : stopped.journals()) {
    auto journal = read_journal(local_storage(), stopped.root / name);
    if (!journal) continue;
    journal->fragment_files = {foreign.filename().string()};  // which is not there
    write_file(stopped.root / name, journal_text(*journal));
  }
  CHECK(execute(*stopped.job, resuming()).resumed_bytes == 0);
}

TEST_CASE("Journals, swap records and marks have the bytes that earlier versions wrote") {
  Journal journal;
  journal.header = {"f00d", 7, {{"tp", "8"}, {"pp", ""}}, {{"model.safetensors", 12345, "stamp"}}, {{"dtype", "bf16"}}};
  journal.fragment_files = {".journal-0-0-fragments-0"};
  UnitReport unit;
  unit.unit = 6;
  unit.written_bytes = std::uint64_t{1} << 40;
  unit.crcs = {{3, 0xffffffff}, {4, 1}};
  unit.files = {0, 2};
  unit.leaves = {{5, 1 << 20, sha256({})}};
  unit.inexact = {9};
  unit.lost = {{9, {2, 1}}};
  unit.divergent = {{"t", "differs", true, 0.5, -0.25, 3, UINT32_MAX}};
  journal.units = {unit, {}};
  const auto digest = [](const std::string& text) { return to_hex(sha256(std::as_bytes(std::span(text)))); };
  const std::string text = journal_text(journal);
  CHECK(digest(text) == "1ed730d91ee2f83004d48b36f4fb58e80590b2990ec5f0a61e78bbc1ba0a0576");
  const Journal read = parse_journal(text).value();
  CHECK(read.header == journal.header);
  CHECK(journal_text(read) == text);
  CHECK(digest(swap_record({"a/b", "c"})) == "d69d1b2211108f3db6c39e9b51361fd6f6cff038a7943b5e9542835e754bce5a");
  CHECK(digest(staging_mark(*Jobs().planners.at(0).second("out"))) ==
        "9aea505bb73d8ec12a0a57ef71dea1dde90883e9cf88bf458c72e5aec09f0faa");
}

TEST_CASE("A journal with units that are none of the run's is refused before anything is copied") {
  Stopped stopped;
  const auto files = stopped.journals();
  Journal spoilt = read_journal(local_storage(), stopped.root / files.at(0)).value();
  UnitReport& unit = spoilt.units.at(0);
  const auto spoil = GENERATE(0, 1, 2, 3, 4);
  if (spoil == 0) unit.inexact = {std::size_t{1} << 40};
  if (spoil == 1) unit.files = {UINT32_MAX};
  if (spoil == 2) unit.crcs = {{UINT32_MAX, 1}};
  if (spoil == 4) unit.lost = {{std::size_t{1} << 40, {1, 0}}};
  if (spoil == 3) unit.leaves = {{0, UINT64_MAX, {}}};
  write_file(stopped.root / files.front(), journal_text(spoilt));
  for (std::size_t i = 1; i < files.size(); ++i) fs::remove(stopped.root / files[i]);
  check_error(stopped.resume(*stopped.job), {.path = stopped.root / files.front()});
}

TEST_CASE("A rank file that is gone, or was cut, is told, and nothing goes on") {
  Stopped stopped;
  const fs::path file = stopped.root / stopped.job->target.files.at(3).path;
  fs::resize_file(file, 10);
  check_error(stopped.resume(*stopped.job), {.path = file, .hint = "`clean`"});
}

TEST_CASE("A run that lives is told apart from a dead one: none is begun beside it, and it is not removed") {
  Stopped stopped;
  {
    const auto lock = local_directories().lock(stopped.root / kLockFile, true);
    REQUIRE(lock);
    const auto runs = earlier_runs(local_storage(), *stopped.job);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].state == EarlierRun::State::kLives);
    CHECK(remove_dead_runs(local_storage(), *stopped.job).empty());
    CHECK_FALSE(find_resumable(local_storage(), *stopped.job, {}));
    for (const bool resume : {false, true}) {
      RunOptions options = resume ? resuming() : unsynced();
      std::size_t notes = 0;
      options.on_note = [&](const std::string&) { ++notes; };
      check_refused([&] { execute(*stopped.job, options); },
                    {.kind = ErrorKind::kIo, .says = "another run is writing here"});
      CHECK(notes == 0);  // that another one begins
    }
    CHECK(fs::exists(stopped.root));
  }
  const auto runs = earlier_runs(local_storage(), *stopped.job);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].state == EarlierRun::State::kDead);
  CHECK(runs[0].size_bytes > stopped.job->program.write_bytes);
  fs::remove(stopped.root / kLockFile);
  CHECK(earlier_runs(local_storage(), *stopped.job).at(0).state == EarlierRun::State::kUnknown);
  const auto removed = remove_dead_runs(local_storage(), *stopped.job);
  REQUIRE(removed.size() == 1);
  CHECK(removed[0].root == stopped.root);
  CHECK_FALSE(fs::exists(stopped.root));
}

TEST_CASE("Of two runs that go on at once, one does, with all of its ranks") {
  Stopped stopped;
  JobRun run(*stopped.job, resuming());
  run.prepare();
  CHECK(run.resumes());
  check_error(stopped.resume(*stopped.job), {.kind = ErrorKind::kIo, .says = "another run is writing here"});
  JobRun(*stopped.job, resuming()).attach(run.prepared());
}

TEST_CASE("A run that ends before its first journal leaves nothing when it fails") {
  const Jobs jobs;
  const auto before = snapshot(jobs.temp.path());
  const auto job = jobs.plan();
  FaultStorage storage;
  storage.fail_after_bytes = job->output_bytes() / 2;
  storage.kind = ErrorKind::kNoSpace;
  CHECK_THAT(error_of([&] { execute(*job, {.stores = storage}); }).hint(), !Says("resume"));
  CHECK((snapshot(jobs.temp.path()) == before));
}

TEST_CASE("A journal for which there is no space is done without, and a note says so") {
  const Jobs jobs;
  const auto job = jobs.plan();
  FaultStorage storage;
  std::uint64_t creates = 0;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kCreate && ++creates > output_files(*job).size() + 1)  // and the mark
      throw Error(ErrorKind::kNoSpace, "no journal");
  };
  const RunResult result = execute(*job, journalled(storage));
  REQUIRE(result.notes.size() == 1);
  CHECK_THAT(result.notes.front(), Says("there was no space for the journal"));
  CHECK(fs::is_directory(jobs.output));
}

TEST_CASE("A journal that cannot be written is the run's failure") {
  const Jobs jobs;
  const auto job = jobs.plan();
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kCreate && storage.count(FaultStorage::Operation::kCreate) > 0 &&
        staging_in(jobs.temp.path()) && !journal_files(local_storage(), *staging_in(jobs.temp.path())).empty())
      throw Error(ErrorKind::kIo, "no journal");
  };
  CHECK(error_of([&] { execute(*job, journalled(storage)); }).message() == "no journal");
}

}  // namespace
}  // namespace reshard::test
