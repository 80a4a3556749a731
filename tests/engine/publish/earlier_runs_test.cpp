// What runs that stopped have left: what is told of it, gone on with and removed, and what is left alone.

#include "reshard/engine/publish/earlier_runs.h"

#include <sys/stat.h>

#include <optional>
#include <utility>

#include "engine/publish/stopped_run.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/staging_mark.h"
#include "support/refusals.h"
#include "support/test_directories.h"
#include "support/thread_ranks.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The notes of a run with `clean`.
std::vector<std::string> cleaned(const Job& job) {
  std::vector<std::string> notes;
  RunOptions options = journalled(local_storage());
  options.clean = true;
  options.on_note = [&](const std::string& note) { notes.push_back(note); };
  execute(job, options);
  return notes;
}

TEST_CASE("A link with the name of a staging directory is not followed: nothing behind it is removed or published") {
  Stopped stopped;
  const fs::path precious = stopped.jobs.temp / "precious";
  fs::rename(stopped.root, precious);
  fs::create_directory_symlink(precious, stopped.root);
  const auto before = snapshot(precious);
  CHECK(earlier_runs(local_storage(), *stopped.job).empty());
  SECTION("clean") {
    CHECK(cleaned(*stopped.job).empty());
  }
  SECTION("resume") {
    CHECK(execute(*stopped.job, resuming()).resumed_bytes == 0);
  }
  CHECK((snapshot(precious) == before));
  CHECK(fs::is_symlink(stopped.root));
  CHECK(fs::is_directory(fs::symlink_status(stopped.jobs.output)));
}

TEST_CASE("A directory that no run has made is left alone, whatever its name and though it has a lock file") {
  Stopped stopped;
  const fs::path foreign = stopped.jobs.temp / ".out.reshard-bbbbbb";
  write_file(foreign / kLockFile, "");
  write_file(foreign / "thesis.txt", "mine");
  const std::vector<std::string> notes = cleaned(*stopped.job);
  CHECK_FALSE(fs::exists(stopped.root));
  CHECK(read_file(foreign / "thesis.txt") == "mine");
  CHECK(fs::exists(foreign / kLockFile));
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[0], Says(stopped.root.string() + ": deleted"));
  CHECK(notes[1] == foreign.string() + ": left alone, since it contains thesis.txt, which no run created");
}

TEST_CASE("Files of others in what a killed run has left are not deleted, at any depth, and neither is that") {
  Stopped stopped;
  const auto [file, culprit] = GENERATE(table<std::string, std::string>(
      {{"thesis.txt", "thesis.txt"},
       {".journal-notes.txt", ".journal-notes.txt"},
       {".lock", ".lock"},  // that of a run is empty
       {"tensor_parallel_shards/thesis.txt", "tensor_parallel_shards/thesis.txt"},
       {"tensor_parallel_shards/tp_rank_00_pp_rank_00/x.txt", "tensor_parallel_shards/tp_rank_00_pp_rank_00/x.txt"},
       {"tensor_parallel_shards/mine/thesis.txt", "tensor_parallel_shards/mine"}}));
  write_file(stopped.root / file, "mine");
  const auto before = snapshot(stopped.root);
  CHECK(cleaned(*stopped.job) == std::vector<std::string>{stopped.root.string() + ": left alone, since it contains " +
                                                          culprit + ", which no run created"});
  CHECK((snapshot(stopped.root) == before));
}

TEST_CASE("A mark of deep folders belongs to another program") {
  Stopped stopped;
  std::string deep;
  for (int level = 0; level < 100; ++level) deep += "d/";
  WireWriter wire;
  wire.add(std::uint64_t{1});
  wire.add(deep + "file");
  write_file(stopped.root / kMarkFile, sealed("reshard staging directory 2\n", wire.bytes()));
  const std::vector<std::string> notes = cleaned(*stopped.job);
  CHECK(fs::exists(stopped.root / kMarkFile));
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Says("its .mark was not written by this program"));
}

TEST_CASE(
    "What runs have left that were killed before they had a lock or a mark is removed, and so is one that lost its "
    "lock") {
  Stopped stopped;
  const fs::path empty = stopped.jobs.temp / ".out.reshard-aaaaaa", locked = stopped.jobs.temp / ".out.reshard-bbbbbb";
  const fs::path torn = stopped.jobs.temp / ".out.reshard-cccccc";
  fs::create_directories(empty);
  write_file(locked / kLockFile, "");
  write_file(torn / kLockFile, "");
  write_file(torn / kMarkFile,
             GENERATE(as<std::string>(), "", std::string(100, '\0')));  // on the disk before its bytes
  fs::rename(stopped.root / kLockFile, stopped.jobs.temp / "moved");
  CHECK(cleaned(*stopped.job).size() == 4);
  for (const fs::path& root : {empty, locked, torn, stopped.root}) CHECK_FALSE(fs::exists(root));
}

TEST_CASE("What a machine crash left with a mark of zeros is removed by the same command, and files of others stay") {
  Stopped stopped;
  write_file(stopped.root / kMarkFile, std::string(fs::file_size(stopped.root / kMarkFile), '\0'));
  if (GENERATE(true, false)) {
    CHECK(cleaned(*stopped.job).size() == 1);
    CHECK_FALSE(fs::exists(stopped.root));
  } else {
    write_file(stopped.root / "thesis.txt", "mine");
    const std::vector<std::string> notes = cleaned(*stopped.job);
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Says("left alone, since it contains thesis.txt"));
    CHECK(read_file(stopped.root / "thesis.txt") == "mine");
  }
}

TEST_CASE("A run with resume removes what it could not use, once it has published, and nothing before") {
  Stopped stopped;
  const fs::path early = stopped.jobs.temp / ".out.reshard-aaaaaa", foreign = stopped.jobs.temp / ".out.reshard-bbbbbb";
  fs::copy(stopped.root, early, fs::copy_options::recursive);
  for (const std::string& name : journal_files(local_storage(), early)) fs::remove(early / name);
  write_file(foreign / "thesis.txt", "mine");
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kSync) throw Error(ErrorKind::kIo, "made to fail");
  };
  CHECK(error_of([&] { execute(*stopped.job, resuming(storage)); }).kind() == ErrorKind::kIo);
  CHECK(fs::exists(early));
  const RunResult result = execute(*stopped.job, resuming());
  CHECK(result.resumed_bytes > 0);
  CHECK_FALSE(fs::exists(early));
  CHECK(read_file(foreign / "thesis.txt") == "mine");
  REQUIRE(result.notes.size() == 1);
  CHECK_THAT(result.notes[0], Says(early.string() + ": deleted"));
}

TEST_CASE("What is another user's is neither gone on with nor removed") {
  Stopped stopped;
  TestStorage test;
  test.directories.owns = false;
  const auto before = snapshot(stopped.root);
  const auto runs = earlier_runs(test.storage, *stopped.job);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].state == EarlierRun::State::kForeign);
  CHECK(runs[0].why_foreign == "it belongs to another user");
  CHECK(remove_dead_runs(test.storage, *stopped.job).empty());
  CHECK(execute(*stopped.job, resuming(test.storage)).resumed_bytes == 0);
  CHECK((snapshot(stopped.root) == before));
}

TEST_CASE("What a killed run has left can be removed when the output is complete") {
  Stopped stopped;
  execute(*stopped.job, journalled(local_storage()));
  const auto output = snapshot(stopped.jobs.output);
  check_refused([&] { execute(*stopped.job, journalled(local_storage())); },
                {.hint = "in " + stopped.root.string() + "; delete it with `clean`"});
  REQUIRE(fs::exists(stopped.root));
  check_refused([&] { cleaned(*stopped.job); }, {.says = "already exist", .unwritten = stopped.root});
  CHECK((snapshot(stopped.jobs.output) == output));
}

TEST_CASE("A damaged journal, or one of another version, does not hide a good one beside it") {
  Stopped stopped;
  const auto bad = GENERATE(as<std::string>(), "reshard journal 4\n", "reshard journal 5\n");
  write_file(stopped.root / ".journal-0-0-!", sealed(bad, "cut"));  // the first by name
  REQUIRE(journal_files(local_storage(), stopped.root).front() == ".journal-0-0-!");
  CHECK(has_journal(local_storage(), stopped.root));
  CHECK(execute(*stopped.job, resuming()).resumed_bytes > 0);
}

TEST_CASE("A run with resume first deletes what no run can continue from, whose space it may need") {
  Stopped stopped;
  for (const std::string& name : journal_files(local_storage(), stopped.root)) fs::remove(stopped.root / name);
  FaultStorage storage;
  bool is_left = false;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation == FaultStorage::Operation::kWrite) is_left = is_left || fs::exists(stopped.root);
  };
  std::vector<std::string> notes;
  RunOptions options = resuming(storage);
  options.on_note = [&](const std::string& note) { notes.push_back(note); };
  CHECK(execute(*stopped.job, options).resumed_bytes == 0);
  CHECK_FALSE(is_left);
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[0], Says(stopped.root.string() + ": deleted"));
  CHECK(notes[1] == "nothing to resume: starting from scratch");
}

TEST_CASE("A signal without resume leaves nothing, and says how a run keeps its progress") {
  const Jobs jobs;
  Progress progress;
  progress.stop = true;
  RunOptions options = journalled(local_storage());
  options.progress = &progress;
  const auto job = jobs.plan();
  check_error(error_of([&] { execute(*job, options); }), {.kind = ErrorKind::kInterrupted, .hint = "`resume` keeps"});
  CHECK_FALSE(staging_in(jobs.temp.path()));
}

TEST_CASE("A signal to any rank of a run with resume leaves its outputs, and says so") {
  const std::uint32_t signalled = GENERATE(0u, 1u, 2u);  // of two: both
  CAPTURE(signalled);
  const Jobs jobs;
  const auto job = jobs.plan();
  std::vector<FaultStorage> storages(2);
  std::vector<Progress> progress(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    storages[rank].before = [&, rank](FaultStorage::Operation operation, std::uint64_t) {
      if ((signalled != rank && signalled != 2) || operation != FaultStorage::Operation::kWrite) return;
      const auto staging = staging_in(jobs.temp.path());
      if (staging && journal_files(local_storage(), *staging).size() >= 3) progress[rank].stop = true;
    };
  const auto thrown = run_ranks(2, [&](Together& together) {
    RunOptions options = resuming(storages[together.rank()]);
    options.progress = &progress[together.rank()];
    execute(*job, options, together);
  });
  const auto staging = staging_in(jobs.temp.path());
  REQUIRE((staging && thrown[0]));
  check_error(*thrown[0],
              {.kind = ErrorKind::kInterrupted, .hint = "the data written so far stays in " + staging->string()});
}

TEST_CASE("Outputs that cannot get their names stay for the next run, and have their names then") {
  const bool existing = GENERATE(false, true);
  CAPTURE(existing);
  const Jobs jobs;
  const fs::path& output = jobs.output;
  const auto job = jobs.plan();
  const auto expected = written_by(*job);
  if (existing) {
    execute(*job, unsynced());
    write_file(output / "config.json", "old");
  }
  job->force = existing;
  TestStorage test;
  test.directories.before = [&](const char* step, const fs::path& path) {
    if (step == std::string("rename") && (path == output || path.parent_path() == output))
      throw Error(ErrorKind::kIo, "made to fail").in(path);
  };
  const Error error = error_of([&] { execute(*job, resuming(test.storage)); });
  const auto staging = staging_in(jobs.temp.path());  // it was to be swapped with the output directory
  REQUIRE(staging);
  check_error(error, {.kind = ErrorKind::kIo, .hint = "the data written so far stays in " + staging->string()});
  CHECK(fs::exists(output) == existing);
  if (existing) CHECK(read_file(output / "config.json") == "old");
  CHECK(execute(*job, resuming()).resumed_bytes == job->program.write_bytes);
  CHECK((snapshot(output) == expected));
  CHECK_FALSE(staging_in(output));
  CHECK_FALSE(staging_in(jobs.temp.path()));
}

TEST_CASE("What a kill in the moment of publishing leaves in a new output is gone on with, or removed") {
  const Jobs jobs;
  const fs::path& output = jobs.output;
  const auto job = jobs.plan();
  const auto expected = written_by(*job);
  TestStorage test;
  std::optional<fs::path> root;
  test.directories.before = [&](const char* step, const fs::path& path) {
    if (step != std::string("rename") || path != output) return;
    root = staging_in(jobs.temp.path());
    fs::copy(*root, jobs.temp / "saved", fs::copy_options::recursive);
    throw Error(ErrorKind::kInternal, "killed");
  };
  CHECK(error_of([&] { execute(*job, journalled(test.storage)); }).message() == "killed");
  REQUIRE(root);
  fs::remove_all(*root);
  fs::rename(jobs.temp / "saved", *root);
  SECTION("resume") {
    CHECK(execute(*job, resuming()).resumed_bytes == job->program.write_bytes);
    CHECK((snapshot(output) == expected));
  }
  SECTION("clean") {
    CHECK(remove_dead_runs(local_storage(), *job).size() == 1);
  }
  CHECK_FALSE(fs::exists(*root));
}

TEST_CASE("A run that goes on makes its outputs as private as the inputs have become meanwhile") {
  Stopped stopped;
  const ::mode_t mask = ::umask(022);
  fs::permissions(stopped.jobs.temp / "model", fs::perms::owner_all);
  for (const auto& entry : fs::directory_iterator(stopped.jobs.temp / "model"))
    fs::permissions(entry.path(), fs::perms::owner_read | fs::perms::owner_write);
  const auto job = stopped.jobs.plan();
  CHECK(execute(*job, resuming()).resumed_bytes > 0);
  ::umask(mask);
  for (const auto& entry : fs::recursive_directory_iterator(stopped.jobs.temp / "out")) {
    INFO(entry.path().string());
    CHECK((entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all)) == fs::perms::none);
  }
}

TEST_CASE("A folder in what is left that no run of the job made is told, and not published") {
  Stopped stopped;
  const auto name = GENERATE(as<std::string>(), "d", ".journal-8-0-0", "tensor_parallel_shards/d");
  fs::create_directories(stopped.root / name);
  check_error(stopped.resume(*stopped.job), {.path = stopped.root / name});
  CHECK(fs::is_directory(stopped.root / name));
  CHECK_FALSE(fs::exists(stopped.jobs.temp / "out"));
}

TEST_CASE("A run that was given another option of the layout, or makes another dtype, is told which") {
  Stopped stopped;
  JournalHeader header = read_journal(local_storage(), stopped.root / stopped.journals().at(0)).value().header;
  const auto refused = [&] {
    const Error error = check_refused([&] { find_resumable(local_storage(), *stopped.job, header); },
                                      {.kind = ErrorKind::kUsage, .path = stopped.root});
    return error.message();
  };
  header.given["fuse-qkv"] = "true";
  CHECK(find_resumable(local_storage(), *stopped.job, header));  // it had no effect
  header.fingerprint = "another";
  CHECK(refused() == "the run that left this was not given `fuse-qkv`");
  header.given.erase("fuse-qkv");
  const std::string dtype = std::exchange(header.given.at("dtype"), "F32");
  CHECK(refused() == "the run that left this had `dtype` " + dtype + " instead of F32");
  // With another dtype config.json is not copied, but written: that says less.
  header.sources.push_back({"config.json", 10, "stamp"});
  CHECK(refused() == "the run that left this had `dtype` " + dtype + " instead of F32");
  header.sources.pop_back();
  stopped.job->shares_directory = true;  // with runs of other ranks; this one has the same
  CHECK(refused() == "the run that left this had `dtype` " + dtype + " instead of F32");
  header.given.at("dtype") = dtype;
  CHECK(refused() == "the run that left this had other options, or was started by another version of reshard");
}

}  // namespace
}  // namespace reshard::test
