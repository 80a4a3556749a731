// Runs with `force` that are killed at any moment of replacing outputs.

#include "reshard/layouts/interrupted_swap.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/output.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/test_directories.h"
#include "support/thread_ranks.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Tensors and config.json; std::nullopt if a reader refuses the outputs because they are being swapped.
using Content = std::optional<std::pair<TensorMap, std::string>>;

void validate_refusal(const Error& error) {
  check_error(error, {.says = "was killed while it published its outputs here",
                      .hint = {"run its command again", ".reshard-"}});
}

/// What `convert` and `inspect` make of a directory.
Content content_of(const fs::path& directory) {
  const TempDir out;
  try {
    convert(convert_request(directory, out / "out"));
  } catch (const Error& error) {
    validate_refusal(error);
    validate_refusal(error_of([&] { read_checkpoint(directory, {.use = ConfigUse::kLenient}); }));
    return std::nullopt;
  }
  CHECK_NOTHROW(read_checkpoint(directory, {.use = ConfigUse::kLenient}));
  return std::pair(read_model(out / "out"), read_file(out / "out/config.json"));
}

/// Copies a directory as a kill leaves it, with the times of its files.
void copy_tree(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(from))
    fs::last_write_time(to / entry.path().lexically_relative(from), entry.last_write_time());
}

/// Keeps what is in a directory at every moment of publishing at which something has changed.
class Watch {
 public:
  Watch(fs::path directory, fs::path kept, bool exchanges)
      : test(exchanges), directory_(std::move(directory)), kept_(std::move(kept)) {
    test.directories.before = [&](const char*, const fs::path&) { look(); };
    test.storage.before = [&](FaultStorage::Operation, std::uint64_t) { look(); };
  }
  RunOptions options() { return {.threads = 1, .progress = &progress, .stores = test.storage, .sync = false}; }
  void look() {
    if (progress.phase != RunPhase::kPublishing) return;
    std::map<fs::path, FileStamp> now;
    for (const auto& entry : fs::recursive_directory_iterator(directory_))
      now.emplace(entry.path(), entry.is_directory() ? FileStamp() : local_storage().stamp(entry.path()));
    if (now == last_) return;
    last_ = std::move(now);
    states.push_back(kept_ / std::to_string(states.size()));
    copy_tree(directory_, states.back());
  }

  TestStorage test;
  Progress progress;
  std::vector<fs::path> states;

 private:
  fs::path directory_, kept_;
  std::map<fs::path, FileStamp> last_;
};

/// Two models that differ in all tensors and in config.json, and outputs of the first in `temp`/work/out.
class Replaced {
 public:
  explicit Replaced(std::string layout_name) : name_(std::move(layout_name)) {
    for (const char* name : {"old", "new"}) {
      Random random(name == std::string("old") ? 1 : 2);
      write_model(temp / name, {}, random_tensors({}, random));
      std::string config = read_file(temp / name / "config.json");
      write_file(temp / name / "config.json",
                 config.replace(config.find('{'), 1, fmt::format("{{\"of\": \"{}\",", name)));
    }
    execute(*job("old", temp / "work/out"), unsynced());
    old_content = content_of(temp / "work/out");
    execute(*job("new", temp / "new-out"), unsynced());
    new_content = content_of(temp / "new-out");
    REQUIRE((old_content && new_content && *old_content != *new_content));
  }
  std::unique_ptr<Job> job(const char* source, const fs::path& output, bool force = true) const {
    Request request = convert_request(temp / source, output);
    request.target.layout = layout(name_);
    if (request.target.layout->traits().has_ranks() && !request.target.layout->traits().needs_no_mesh())
      request.target.tp = tp;
    if (name_ == "dcp") request.target.options.set_number("fsdp", 2);
    if (name_ == "hf") request.target.options.set_number("max-shard-size", 3000);
    request.force = force;
    request.target.format = format;
    auto planned = plan_convert(local_storage(), request);
    planned->manifest = name_ == "ranks";
    return planned;
  }
  /// The directory above the output, as it was when a run was killed.
  fs::path restore(const fs::path& state) {
    fs::path work = temp / ("restored" + std::to_string(restored_++));
    copy_tree(state, work);
    return work;
  }
  /// Runs the last command as `watch` sees it.
  void run(Watch& watch) { execute(*job("new", temp / "work/out"), watch.options()); }
  /// Checks that readers see old or new outputs or none in each state, and runs the command again, in one of `ways`,
  /// where they see none. \returns in how many they do.
  std::size_t check_states(const Watch& watch, int ways) {
    std::size_t refused = 0;
    int way = 0;
    for (const fs::path& state : watch.states) {
      INFO(state.string());
      const Content found = content_of(state / "out");
      CHECK((!found || found == old_content || found == new_content));
      refused += found ? 0 : 1;
      if (!found || (ways > 1 && way % 3 == 0)) run_again(state, way % ways);
      ++way;
    }
    return refused;
  }
  /// Runs the command again, in one of four ways, with what a kill has left.
  void run_again(const fs::path& state, int way) {
    const fs::path output = restore(state) / "out";
    const RunOptions options{.sync = way == 2, .resume = way == 2, .clean = way == 1};
    if (way < 3) {
      CHECK_NOTHROW(execute(*job("new", output), options));
      CHECK(content_of(output) == new_content);
      CHECK((way == 0 || earlier_runs(local_storage(), *job("new", output)).empty()));
    } else {
      check_refused([&] { execute(*job("new", output, false), options); }, {.says = "already exist"});
      const Content now = content_of(output);
      CHECK((now == old_content || now == new_content));
    }
  }

  TempDir temp;
  Content old_content, new_content;
  std::uint32_t tp = 2;          // of layouts with a mesh
  std::optional<Format> format;  // else the layout's first

 private:
  std::string name_;
  int restored_ = 0;
};

TEST_CASE("At whatever moment a run with force is killed, readers see old outputs or new ones or the interrupted run") {
  const auto to = GENERATE(as<std::string>(), "hf", "dcp", "ranks", "vllm");
  // Beside files that stay, directories are not swapped.
  const auto [has_others, exchanges] = GENERATE(table<bool, bool>({{false, true}, {false, false}, {true, true}}));
  CAPTURE(to, has_others, exchanges);
  Replaced replaced(to);
  if (has_others) write_file(replaced.temp / "work/out/notes.txt", "mine");
  Watch watch(replaced.temp / "work", replaced.temp / "states", exchanges);
  replaced.run(watch);
  CHECK(content_of(replaced.temp / "work/out") == replaced.new_content);
  CHECK(fs::exists(replaced.temp / "work/out/notes.txt") == has_others);
  REQUIRE(watch.states.size() >= 4);
  const std::size_t refused = replaced.check_states(watch, 4);
  CHECK((refused == 0) == (exchanges && !has_others));
  CHECK(refused < watch.states.size());
}

TEST_CASE("Ranks that the new mesh does not have are removed after a kill, too") {
  const bool exchanges = GENERATE(true, false);
  Replaced replaced("ranks");
  replaced.tp = 1;
  Watch watch(replaced.temp / "work", replaced.temp / "states", exchanges);
  execute(*replaced.job("new", replaced.temp / "work/out"), watch.options());
  for (const fs::path& state : watch.states) {
    INFO(state.string());
    replaced.run_again(state, 1);
  }
}

TEST_CASE("A run that finishes an interrupted one may be killed, too") {
  Replaced replaced("hf");
  write_file(replaced.temp / "work/out/notes.txt", "mine");
  Watch first(replaced.temp / "work", replaced.temp / "states", true);
  replaced.run(first);
  std::size_t finished = 0;
  for (const fs::path& state : first.states) {
    if (content_of(state / "out")) continue;
    const fs::path work = replaced.restore(state);
    Watch second(work, replaced.temp / ("again" + std::to_string(finished++)), true);
    second.progress.phase = RunPhase::kPublishing;
    const auto job = replaced.job("new", work / "out");
    const auto notes = finish_swaps(second.test.storage, *job);
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Says("completed the interrupted publishing"));
    CHECK(content_of(work / "out") == replaced.new_content);
    CHECK(fs::exists(work / "out/notes.txt"));
    CHECK(earlier_runs(local_storage(), *job).empty());
    for (std::size_t i = 0; i < second.states.size(); i += 3) {
      const fs::path again = replaced.restore(second.states[i]);
      finish_swaps(local_storage(), *replaced.job("new", again / "out"));
      CHECK(content_of(again / "out") == replaced.new_content);
    }
  }
  CHECK(finished > 4);
}

TEST_CASE("Several ranks replace outputs as one does") {
  Replaced replaced("dcp");
  write_file(replaced.temp / "work/out/notes.txt", "mine");
  Watch watch(replaced.temp / "work", replaced.temp / "states", true);
  const auto job = replaced.job("new", replaced.temp / "work/out");
  check_none_threw(run_ranks(
      2, [&](Together& together) { execute(*job, together.leads() ? watch.options() : unsynced(), together); }));
  CHECK(content_of(replaced.temp / "work/out") == replaced.new_content);
  CHECK(replaced.check_states(watch, 1) > 4);
}

TEST_CASE("A command that reads from the directory that it writes to finishes what it had begun") {
  Replaced replaced("ranks");
  const fs::path work = replaced.temp / "work";
  const auto plan = [](const fs::path& output) {
    Request request = consolidate_request(output, output);
    request.target.options.set_number("max-shard-size", 3000);
    request.force = true;
    return plan_consolidate(request);
  };
  fs::remove(work / "out/reshard.manifest.json");
  execute(*plan(work / "out"), unsynced());
  const auto expected = snapshot(work);
  Watch watch(work, replaced.temp / "states", true);
  execute(*plan(work / "out"), watch.options());
  REQUIRE(watch.states.size() > 8);
  for (const fs::path& state : watch.states) {
    INFO(state.string());
    const fs::path again = replaced.restore(state);
    execute(*plan(again / "out"), {.sync = false, .clean = true});
    CHECK((snapshot(again) == expected));
  }
}

/// What a run leaves that is killed while half of its outputs have their names.
fs::path half_way(Replaced& replaced) {
  write_file(replaced.temp / "work/out/notes.txt", "mine");
  Watch watch(replaced.temp / "work", replaced.temp / "states", true);
  replaced.run(watch);
  std::vector<fs::path> refused;
  for (const fs::path& state : watch.states)
    if (!content_of(state / "out")) refused.push_back(state);
  REQUIRE(refused.size() > 2);
  return replaced.restore(refused[refused.size() / 2]);
}

TEST_CASE("A swap may be finished by another run while this one is about to finish it") {
  Replaced replaced("hf");
  const fs::path state = half_way(replaced);
  std::uint64_t at = 0;
  for (bool ended = false; !ended; ++at) {
    INFO("before operation " << at);
    const fs::path output = replaced.restore(state) / "out";
    const auto job = replaced.job("new", output);
    TestStorage test;
    std::uint64_t operations = 0;
    const auto step = [&] {
      if (operations++ == at) finish_swaps(local_storage(), *job);
    };
    test.storage.before = [&](FaultStorage::Operation, std::uint64_t) { step(); };
    test.directories.before = [&](const char*, const fs::path&) { step(); };
    CHECK_NOTHROW(finish_swaps(test.storage, *job));
    CHECK(content_of(output) == replaced.new_content);
    CHECK(earlier_runs(local_storage(), *job).empty());
    ended = operations <= at;
  }
  CHECK(at > 10);
}

TEST_CASE("An interrupted swap is told, and neither removed nor gone on with") {
  Replaced replaced("hf");
  const fs::path work = half_way(replaced);
  const auto before = snapshot(work);
  const auto job = replaced.job("new", work / "out");
  const auto runs = earlier_runs(local_storage(), *job);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].state == EarlierRun::State::kSwaps);
  CHECK(remove_dead_runs(local_storage(), *job).empty());
  CHECK((snapshot(work) == before));
  SECTION("a file of another run is not refused") {
    execute(*replaced.job("old", work / "out/other"), unsynced());
    CHECK(content_of(work / "out/other") == replaced.old_content);
  }
  SECTION("weights that are given as a file are refused, too") {
    const auto entries = read_swap_record(local_storage(), runs[0].root);
    REQUIRE(entries);
    REQUIRE(entries->front().extension() == ".safetensors");
    validate_refusal(error_of([&] { read_checkpoint(work / "out" / entries->front(), {}); }));
  }
  SECTION("a directory without swaps is read, also the root") {
    CHECK_THROWS_AS(read_checkpoint("/", {}), Error);
    CHECK_THROWS_AS(read_checkpoint("/tensor_parallel_shards", {}), Error);
  }
  SECTION("a run that lives is left to itself") {
    const auto lock = local_directories().lock(runs[0].root / kLockFile, true);
    CHECK(finish_swaps(local_storage(), *job).empty());
    CHECK((snapshot(work) == before));
    check_refused([&] { execute(*job, unsynced()); }, {.kind = ErrorKind::kIo, .says = "another run is writing here"});
  }
}

TEST_CASE("A record of a swap that cannot be read is an error that names it, and its run is not removed") {
  Replaced replaced("hf");
  const fs::path work = half_way(replaced);
  const auto before = snapshot(work);
  const auto job = replaced.job("new", work / "out");
  const fs::path record = earlier_runs(local_storage(), *job).at(0).root / kSwapFile;
  FaultStorage storage;
  std::size_t failed = 0;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t number) {
    if (operation != FaultStorage::Operation::kRead || storage.steps()[number].path != record) return;
    ++failed;
    throw Error(ErrorKind::kIo, "made to fail").in(record);
  };
  const Refusal refusal{.kind = ErrorKind::kIo, .path = record.string(), .says = "made to fail"};
  check_refused([&] { read_checkpoint(storage, work / "out", {}); }, refusal);
  check_refused([&] { remove_dead_runs(storage, *job); }, refusal);
  check_refused([&] { finish_swaps(storage, *job); }, refusal);
  CHECK(failed == 3);
  CHECK((snapshot(work) == before));
}

TEST_CASE("A link to itself is reported as a file that does not exist") {
  const TempDir temp;
  fs::create_symlink("link", temp / "link");
  check_refused([&] { read_checkpoint(temp / "link", {}); }, {.says = "no such file or directory"});
}

TEST_CASE("An interrupted swap that cannot be finished stops the next run and stays as it is") {
  Replaced replaced("hf");
  const fs::path work = half_way(replaced);
  const auto job = replaced.job("new", work / "out");
  const fs::path root = earlier_runs(local_storage(), *job).at(0).root;
  std::string why;
  TestStorage test;
  SECTION("another user's") {
    test.directories.owns = false;
    why = "it belongs to another user";
  }
  SECTION("without its lock") {
    fs::remove(root / kLockFile);
    why = "cannot determine";
  }
  SECTION("in the way of what somebody has put there") {
    for (const auto& entry : fs::recursive_directory_iterator(root / ".replaced"))
      write_file(work / "out" / entry.path().lexically_relative(root / ".replaced"), "mine");
    why = "was created or changed after a run was killed";
  }
  SECTION("with a record of a folder that leads elsewhere") {
    write_file(replaced.temp / "elsewhere/keys", "mine");
    fs::create_directory_symlink(replaced.temp / "elsewhere", work / "out/linked");
    write_file(root / "linked/keys", "another's");
    write_file(root / ".swap", swap_record({"linked/keys"}));
    why = "linked is a link";
  }
  const auto before = snapshot(work);
  check_refused([&] { execute(*job, {.stores = test.storage, .sync = false, .clean = true}); }, {.says = why});
  CHECK((snapshot(work) == before));
  if (fs::exists(replaced.temp / "elsewhere")) CHECK(read_file(replaced.temp / "elsewhere/keys") == "mine");
}

/// Files below `directory` that contain `text`.
std::size_t count_files(const fs::path& directory, const std::string& text) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && read_file(entry.path()) == text) ++count;
  return count;
}

TEST_CASE(
    "A file that gets an output's name after a kill is never deleted, and once it is moved away the run goes on") {
  const auto to = GENERATE(as<std::string>(), "hf", "dcp", "ranks", "vllm");
  CAPTURE(to);
  Replaced replaced(to);
  write_file(replaced.temp / "work/out/notes.txt", "mine");
  const bool has_old = GENERATE(true, false);
  if (!has_old)
    for (const auto& entry : fs::directory_iterator(replaced.temp / "work/out"))
      if (entry.path().filename() != "notes.txt") fs::remove_all(entry.path());
  Watch watch(replaced.temp / "work", replaced.temp / "states", true);
  replaced.run(watch);
  const auto files = output_files(*replaced.job("new", replaced.temp / "work/out"));
  Random random(has_old ? 1 : 2);
  std::size_t refused = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const fs::path& state = watch.states[pick(random, 0, watch.states.size() - 1)];
    const fs::path& file = files[pick(random, 0, files.size() - 1)];
    INFO(state.string() << ", " << file.string());
    const fs::path work = replaced.restore(state), foreign = work / "out" / file;
    if (!fs::is_directory(foreign.parent_path())) continue;
    const auto runs = earlier_runs(local_storage(), *replaced.job("new", work / "out"));
    const bool is_swapping = std::any_of(runs.begin(), runs.end(),
                                         [](const EarlierRun& run) { return run.state == EarlierRun::State::kSwaps; });
    write_file(foreign, "a person's");
    const bool forces = is_swapping && random() % 2 == 0;
    std::optional<Error> error;
    try {
      execute(*replaced.job("new", work / "out", forces), {.sync = false, .clean = random() % 2 == 0});
    } catch (const Error& thrown) {
      error = thrown;
    }
    const bool names_it = error && std::string(error->what()).find("after a run was killed") != std::string::npos;
    // An output that has its name already is replaced with force, as ever.
    if (!forces || names_it) CHECK(count_files(work, "a person's") == 1);
    if (names_it) {
      check_error(*error, {.hint = "move it away and run the command again"});
      CHECK(lies_inside(foreign, error->path()));
      ++refused;
      fs::rename(error->path(), work / "moved");
      CHECK_NOTHROW(execute(*replaced.job("new", work / "out"), {.sync = false, .clean = true}));
      CHECK(content_of(work / "out") == replaced.new_content);
      CHECK(earlier_runs(local_storage(), *replaced.job("new", work / "out")).empty());
      CHECK(count_files(work, "a person's") == 1);
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("A copy of an output that another run published after a kill is left in place") {
  Replaced replaced("dcp");
  write_file(replaced.temp / "work/out/notes.txt", "mine");
  Watch watch(replaced.temp / "work", replaced.temp / "states", true);
  replaced.run(watch);
  std::size_t found = 0;
  for (const fs::path& state : watch.states) {
    if (content_of(state / "out")) continue;
    const fs::path work = replaced.restore(state);
    const fs::path root = earlier_runs(local_storage(), *replaced.job("new", work / "out")).at(0).root;
    if (!fs::exists(root / "config.json")) continue;
    ++found;
    fs::copy_file(root / "config.json", work / "out/config.json", fs::copy_options::overwrite_existing);
    CHECK_NOTHROW(execute(*replaced.job("new", work / "out"), {.sync = false, .clean = true}));
    CHECK(content_of(work / "out") == replaced.new_content);
  }
  CHECK(found > 2);
}

TEST_CASE("Whatever part of the replaced outputs a killed run has deleted, clean deletes the rest") {
  const auto to = GENERATE(as<std::string>(), "ranks", "nxd");
  const bool exchanges = GENERATE(true, false);
  CAPTURE(to, exchanges);
  Replaced replaced(to);
  replaced.format = Format::kXser;
  replaced.tp = 4;
  execute(*replaced.job("old", replaced.temp / "work/out"), unsynced());
  replaced.tp = 1;
  Watch watch(replaced.temp / "work", replaced.temp / "states", exchanges);
  replaced.run(watch);
  const auto has_old = [](const fs::path& root) {
    return fs::exists(root / ".whole") || fs::exists(root / ".replaced");
  };
  Random random(3);
  std::size_t tried = 0;
  for (const fs::path& state : watch.states) {
    const auto runs = earlier_runs(local_storage(), *replaced.job("new", state / "out"));
    if (runs.size() != 1 || runs[0].state == EarlierRun::State::kSwaps || !has_old(runs[0].root)) continue;
    for (int trial = 0; trial < 3; ++trial) {
      const fs::path work = replaced.restore(state);
      const auto job = replaced.job("new", work / "out");
      const fs::path root = earlier_runs(local_storage(), *job).at(0).root;
      std::vector<fs::path> files;
      for (const auto& entry :
           fs::recursive_directory_iterator(root / (fs::exists(root / ".whole") ? ".whole" : ".replaced")))
        if (entry.is_regular_file()) files.push_back(entry.path());
      // A kill may also come when the files of a folder are deleted, and the folder is not.
      std::map<fs::path, bool> emptied;
      for (const fs::path& file : files) {
        const bool empties = emptied.try_emplace(file.parent_path(), random() % 2 == 0).first->second;
        if (trial == 2 || (trial == 1 ? empties : random() % 2 == 0)) fs::remove(file);
      }
      CAPTURE(clean(local_storage(), *job));
      CHECK_FALSE(fs::exists(root));
      ++tried;
    }
  }
  CHECK(tried > 0);
}

TEST_CASE("A record of a swap that is torn, or leads out of the directory, is none") {
  const TempDir temp;
  const auto read = [&](const std::string& text) {
    write_file(temp / "staging/.swap", text);
    return read_swap_record(local_storage(), temp / "staging");
  };
  const std::vector<fs::path> entries{"a", "b/c"};
  const std::string text = swap_record(entries);
  CHECK(read(text) == entries);
  CHECK_FALSE(read(text.substr(0, text.size() - 1)));
  CHECK_FALSE(read(""));
  for (const char* path : {"", "/a", "..", "a/../../b"}) CHECK_FALSE(read(swap_record({"a", path})));
  std::string deep;  // each folder above it would be looked at
  for (int level = 0; level < 100; ++level) deep += "d/";
  CHECK_FALSE(read(swap_record({"a", deep + "file"})));
  CHECK_FALSE(read_swap_record(local_storage(), temp / "other"));
}

TEST_CASE("An output directory that is swapped keeps its permissions, and one that the process works in stays") {
  Replaced replaced("hf");
  const fs::path output = replaced.temp / "work/out";
  fs::permissions(output, fs::perms::owner_all | fs::perms::group_read);
  const auto before = local_storage().stamp(output);
  execute(*replaced.job("new", output), unsynced());
  CHECK(local_storage().stamp(output) != before);
  CHECK(fs::status(output).permissions() == (fs::perms::owner_all | fs::perms::group_read));
  const fs::path working = fs::current_path();
  fs::current_path(output);
  execute(*replaced.job("old", output), unsynced());
  CHECK(fs::exists("config.json"));
  CHECK(fs::equivalent(".", output));
  fs::current_path(working);
  CHECK(content_of(output) == replaced.old_content);
}

TEST_CASE("What others write into an output directory that is swapped stays") {
  Replaced replaced("hf");
  TestStorage test;
  test.directories.before = [&](const char* step, const fs::path& path) {
    if (step == std::string("rename") && path == replaced.temp / "work/out") write_file(path / "late.txt", "mine");
  };
  execute(*replaced.job("new", replaced.temp / "work/out"), {.stores = test.storage, .sync = false});
  CHECK(read_file(replaced.temp / "work/out/late.txt") == "mine");
  CHECK(content_of(replaced.temp / "work/out") == replaced.new_content);
}

}  // namespace
}  // namespace reshard::test
