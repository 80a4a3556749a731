// What may be written where, and how it looks afterwards.

#include "reshard/engine/publish/publish.h"

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/job_run.h"
#include "reshard/io/local_storage.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/refused_calls.h"
#include "support/requests.h"
#include "support/saved_file.h"
#include "support/temp_dir.h"
#include "support/test_directories.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

class Model {
 public:
  explicit Model(const TinyModel& model = {}) {
    Random random(8);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
  }
  Request request(std::uint32_t tp = 2, bool force = false) const {
    Request request = shard_request(temp / "model", temp / "out", tp);
    request.force = force;
    return request;
  }
  /// The error of a run that must not change anything.
  Error refused(const Request& request) const {
    return refused([&] { shard(request); });
  }
  Error refused(const std::function<void()>& run) const {
    const auto before = snapshot(temp.path());
    Error error = error_of(run);
    CHECK((snapshot(temp.path()) == before));
    return error;
  }
  TempDir temp;
  TensorMap tensors;
};

TEST_CASE("A file that is there is replaced with force alone") {
  const Model model;
  write_file(model.temp / "out/config.json", "old");
  check_error(model.refused(model.request()), {.path = model.temp / "out",
                                               .says = "one output already exists and would be replaced: config.json",
                                               .hint = "`force`"});
  shard(model.request(2, true));
  CHECK(read_file(model.temp / "out/config.json") == read_file(model.temp / "model/config.json"));
}

TEST_CASE("Training state in files that would be replaced is refused even with force, and named") {
  const Model model;
  const fs::path out = model.temp / "out", golden_case = testdata("golden/dcp/llama-fsdp2-optim");
  SECTION("a trainer's checkpoint with as many files") {
    fs::create_directories(out);
    for (const auto& entry : fs::directory_iterator(golden_case / "sharded")) fs::copy(entry.path(), out);
    const Request request =
        shard_request(model.temp / "model", out, {.layout = "dcp", .options = {"fsdp=2"}, .force = true});
    check_error(model.refused(request), {.path = out,
                                         .says = {"76 entries of training state", "optim."},
                                         .hint = {"another output directory", "delete that checkpoint yourself"}});
  }
  SECTION("this program's own, unless the new outputs have it, too") {
    RequestFields fields{.layout = "dcp",
                         .options = {"fsdp=2"},
                         .config = golden_case / "original",
                         .with_optimizer = true,
                         .force = true};
    convert(golden_case / "sharded", out, fields);
    const auto before = snapshot(out);
    convert(golden_case / "sharded", out, fields);
    CHECK((snapshot(out) == before));
    fields.with_optimizer = false;
    const Error error = model.refused([&] { convert(golden_case / "sharded", out, fields); });
    check_error(error, {.path = out, .says = "training state that the new one would not have"});
    fs::remove_all(out);
    convert(golden_case / "sharded", out, fields);
    convert(golden_case / "sharded", out, fields);
  }
  SECTION("an optimizer next to the weights in a file of torch") {
    const bool has_ranks = GENERATE(true, false);
    RequestFields fields{.format = Format::kPytorch, .force = true};
    if (has_ranks) fields.tp = 2;
    const auto run = [&] {
      has_ranks ? shard(model.temp / "model", out, fields) : convert(model.temp / "model", out, fields);
    };
    run();
    run();
    fs::path file;
    for (const auto& entry : fs::recursive_directory_iterator(out))
      if (entry.path().extension() == (has_ranks ? ".pt" : ".bin")) file = entry.path();
    SavedFile saved;
    const std::string state = pickles::dict({{"exp_avg", saved.tensor(floats({2}, {1, 2}))}});
    const std::string weights = pickles::dict({{"w.weight", saved.tensor(floats({2}, {1, 2}))}});
    saved.save(file,
               pickles::dict({{"model", weights}, {"optimizer_state_dict", state}, {"epoch", pickles::number(3)}}));
    check_error(model.refused(run), {.path = file,
                                     .says = "in addition to weights it contains: optimizer_state_dict, epoch",
                                     .hint = "training state is never deleted"});
  }
}

TEST_CASE("Where the kernel cannot rename without replacing, what appeared under a new output's name is still kept") {
  with_refused_calls(kNewCalls, ENOSYS, [] {
    const TempDir dir;
    write_file(dir / "new", "new");
    write_file(dir / "old", "old");
    const auto take = [&] { rename_new(local_storage().directories(), dir / "new", dir / "old"); };
    check_refused(take, {.kind = ErrorKind::kBadInput, .path = dir / "old"});
    CHECK(read_file(dir / "old") == "old");
    fs::remove(dir / "old");
    take();
    CHECK(read_file(dir / "old") == "new");
  });
}

TEST_CASE("A shards folder is replaced as a whole, so that ranks of two meshes never mix") {
  const Model model;
  shard(model.request(4));
  check_error(model.refused(model.request(2)), {.says = "tensor_parallel_shards/"});
  write_file(model.temp / "out/notes.txt", "mine");
  shard(model.request(2, true));
  CHECK(read_ranks(model.temp / "out").size() == 2);
  CHECK(read_file(model.temp / "out/notes.txt") == "mine");
  std::size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(model.temp / "out")) entries += entry.exists() ? 1 : 0;
  CHECK(entries == 3);  // nothing of the staging is left
}

TEST_CASE("A shards folder with what others wrote is refused even with force") {
  const Model model;
  shard(model.request());
  const fs::path shards = model.temp / "out/tensor_parallel_shards";
  const fs::path name =
      GENERATE(as<fs::path>(), "notes.txt", "tp_rank_00_pp_rank_00/optimizer.pt", "other/file", ".hidden",
               "tp_rank_00_pp_rank_00/sub/model.safetensors", "mp_metadata_pp_rank_0.json.bak");
  write_file(shards / name, "mine");
  check_error(model.refused(model.request(2, true)), {.path = shards, .says = name.begin()->string()});
}

TEST_CASE("A user's copy of a rank file is kept, although it has the record of the original") {
  const Model model;
  shard(model.request());
  const fs::path rank = model.temp / "out/tensor_parallel_shards/tp_rank_00_pp_rank_00";
  const char* name = GENERATE("edited.safetensors", "model.safetensors.bak", "tp_rank_00_pp_rank_00.safetensors");
  fs::copy_file(rank / "model.safetensors", rank / name);
  check_error(model.refused(model.request(2, true)), {.says = name});
  CHECK(fs::exists(rank / name));
}

TEST_CASE("A link in the place of an output is replaced, and what it leads to stays") {
  const Model model;
  const fs::path out = model.temp / "out";
  const std::string weights = GENERATE("../elsewhere/file", "/nowhere", "neighbour");
  write_file(model.temp / "elsewhere/file", "mine");
  write_file(out / "neighbour", "mine");
  for (const char* name : {"model.safetensors", "config.json"}) fs::create_symlink(weights, out / name);
  convert(model.temp / "model", out, {.layout = "hf", .force = true});
  for (const char* name : {"model.safetensors", "config.json"})
    CHECK(fs::is_regular_file(fs::symlink_status(out / name)));
  CHECK((read_model(out) == read_model(model.temp / "model")));
  CHECK(read_file(model.temp / "elsewhere/file") == "mine");
  CHECK(read_file(out / "neighbour") == "mine");
}

TEST_CASE("What is of another kind in the place of an output is refused even with force") {
  const Model model;
  const fs::path out = model.temp / "out", shards = out / "tensor_parallel_shards";
  fs::create_directories(model.temp / "elsewhere");
  fs::create_directories(out);
  fs::create_directory_symlink("../elsewhere", shards);
  check_error(model.refused(model.request(2, true)), {.path = shards});
  fs::remove(shards);
  write_file(shards, "mine");
  check_error(model.refused(model.request(2, true)), {.path = shards});
  fs::remove(shards);
  fs::create_directories(out / "config.json");
  check_error(model.refused(model.request(2, true)), {.path = out / "config.json"});
}

TEST_CASE("An output that is an input is refused even with force") {
  const Model model;
  const fs::path input = model.temp / "model/config.json", output = model.temp / "out/config.json";
  fs::create_directories(model.temp / "out");
  fs::create_hard_link(input, output);
  check_error(model.refused(model.request(2, true)), {.kind = ErrorKind::kUsage, .path = output});
  fs::remove(output);
  fs::create_symlink(input, output);
  check_error(model.refused(model.request(2, true)), {.kind = ErrorKind::kUsage, .path = output});
}

TEST_CASE("An output directory that is a file, lies under one, or is a broken symbolic link is refused") {
  const Model model;
  write_file(model.temp / "file", "mine");
  fs::create_symlink("nowhere", model.temp / "dangling");
  const auto [output, culprit, says] =
      GENERATE(table<std::string, std::string, std::string>({{"file", "file", "is not a directory"},
                                                             {"file/sub/out", "file", "is not a directory"},
                                                             {"dangling", "dangling", "is a broken symbolic link"}}));
  const Request request = shard_request(model.temp / "model", model.temp / output);
  check_error(model.refused(request), {.path = model.temp / culprit, .says = says});
}

TEST_CASE("Missing parents are made, and an output directory may be given in any form") {
  const Model model;
  fs::create_directories(model.temp / "real");
  fs::create_directory_symlink("real", model.temp / "link");
  const fs::path output = model.temp / GENERATE(as<std::string>(), "a/b/out", "c/out/", "d/./out", "out/", "link");
  shard(shard_request(model.temp / "model", output, 2));
  CHECK(read_ranks(output).size() == 2);
  CHECK(fs::is_symlink(model.temp / "link"));
}

TEST_CASE("Two dots behind a link lead where the file system says, for all of the outputs") {
  const Model model;
  fs::create_directories(model.temp / "elsewhere/deep");
  fs::create_directories(model.temp / "here");
  fs::create_directory_symlink("../elsewhere/deep", model.temp / "here/link");
  shard(shard_request(model.temp / "model", model.temp / "here/link/../out"));
  CHECK(fs::exists(model.temp / "elsewhere/out/config.json"));
  CHECK(fs::exists(model.temp / "elsewhere/out/tensor_parallel_shards"));
  CHECK_FALSE(fs::exists(model.temp / "here/out"));
}

TEST_CASE("Weights and config.json that are links, as in a download cache, are followed") {
  const Model model;
  fs::create_directories(model.temp / "cache/snapshots/abc");
  fs::rename(model.temp / "model", model.temp / "cache/blobs");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::create_symlink(fs::path("../../blobs") / name, model.temp / "cache/snapshots/abc" / name);
  fs::create_directory_symlink("cache/snapshots/abc", model.temp / "model");
  shard(model.request());
  CHECK_FALSE(fs::is_symlink(model.temp / "out/config.json"));
  consolidate(consolidate_request(model.temp / "out", model.temp / "whole"));
  CHECK((read_model(model.temp / "whole") == model.tensors));
}

TEST_CASE("Outputs that do not fit are refused before anything is made, with both numbers") {
  const Model model;
  const auto job = plan_shard(shard_request(model.temp / "model", model.temp / "a/b/out"));
  const std::uint64_t needed = output_space(local_storage(), *job).needed_bytes;
  CHECK(needed == job->output_bytes());
  TestStorage test;
  test.directories.free = needed - 1;
  check_refused([&] { execute(*job, {.stores = test.storage}); },
                {.kind = ErrorKind::kNoSpace,
                 .path = model.temp.path(),
                 .says = {"(" + std::to_string(needed) + " bytes)", "(" + std::to_string(needed - 1) + " bytes)"},
                 .unwritten = model.temp / "a"});
  test.directories.free = needed;
  CHECK_NOTHROW(execute(*job, {.stores = test.storage}));
}

TEST_CASE("The space that outputs need counts what proves them, to the byte") {
  const Model model;
  const auto job = plan_shard(model.request());
  job->manifest = true;
  const std::uint64_t needed = output_space(local_storage(), *job).needed_bytes;
  CHECK(execute(*job, unsynced()).written_bytes == needed);
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(model.temp / "out"))
    if (entry.is_regular_file()) bytes += entry.file_size();
  CHECK(bytes == needed);
}

TEST_CASE("The space that several ranks need counts the pages that two of them write to") {
  const Model model;
  const auto job = plan_shard(model.request());
  TestStorage test;
  test.directories.free = job->output_bytes();
  const RunOptions options{.stores = test.storage, .sync = false};
  const auto run = [&](std::uint32_t ranks) { JobRun(*job, options).prepare(ranks); };
  CHECK_NOTHROW(run(1));
  check_refused([&] { run(3); }, {.kind = ErrorKind::kNoSpace});
  CHECK_FALSE(fs::exists(model.temp / "out"));
}

/// Fills a staging directory as a run would, and publishes it.
Notes publish(const Job& job, Storage& storage) {
  Staging staging(job, storage);
  for (const TargetFile& file : job.target.files) write_file(staging.root() / file.path, "new weights");
  for (const TextFile& file : job.text_files) write_file(staging.root() / file.path, "new text");
  for (const CopiedFile& file : job.copied_files) write_file(staging.root() / file.path, "new copy");
  return staging.publish();
}

TEST_CASE("Outputs replace old ones as well where the file system cannot swap two names in one step") {
  const bool exchange = GENERATE(true, false);
  const Model model;
  const std::string name = "LICENSE" + std::string(248, 'n');
  write_file(model.temp / "model" / name, "new");
  shard(model.request(4));
  write_file(model.temp / "out" / name, "old");
  TestStorage test(exchange);
  publish(*plan_shard(model.request(2, true)), test.storage);
  CHECK(read_file(model.temp / "out/config.json") == "new copy");
  CHECK(read_file(model.temp / "out" / name) == "new copy");
  CHECK(read_file(model.temp / "out/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors") == "new weights");
  CHECK_FALSE(fs::exists(model.temp / "out/tensor_parallel_shards/tp_rank_02_pp_rank_00"));
  for (const auto& entry : fs::directory_iterator(model.temp / "out"))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("Publishing that fails half-way puts everything back, with and without swapping in one step") {
  const bool exchange = GENERATE(true, false);
  const Model model;
  shard(model.request(4));
  const auto job = plan_shard(model.request(2, true));
  write_file(model.temp / "out/tensor_parallel_shards/precious.txt", "mine");
  const auto before = snapshot(model.temp.path());
  TestStorage test(exchange);
  check_refused([&] { publish(*job, test.storage); }, {.says = "precious.txt"});
  CHECK((snapshot(model.temp.path()) == before));
}

TEST_CASE("A flush that fails before the outputs have their names changes nothing, after that it is a note") {
  const bool existing = GENERATE(false, true);
  CAPTURE(existing);
  const Model model;
  if (existing) shard(model.request(4));
  const auto job = plan_shard(model.request(2, true));
  const auto before = snapshot(model.temp.path());
  Notes notes;
  int failures = 0;
  for (; notes.empty(); ++failures) {
    REQUIRE((snapshot(model.temp.path()) == before));
    TestStorage test;
    int flushes = 0;
    test.directories.before = [&](const char* step, const fs::path& path) {
      if (std::string(step) == "flush" && flushes++ >= failures)
        throw Error(ErrorKind::kIo, "cannot flush to disk").in(path);
    };
    try {
      notes = publish(*job, test.storage);
      REQUIRE(notes.size() == 1);
    } catch (const Error& error) {
      check_error(error, {.kind = ErrorKind::kIo, .says = "cannot flush to disk"});
    }
  }
  CHECK(failures > 4);
  CHECK_THAT(notes[0], Says("the outputs are complete"));
  CHECK(read_file(model.temp / "out/config.json") == "new copy");
}

TEST_CASE("Whichever step on directories fails, what stood there stays, and nothing is left beside it") {
  const bool existing = GENERATE(false, true), exchange = GENERATE(true, false);
  CAPTURE(existing, exchange);
  const Model model;
  if (existing) shard(model.request(4));
  const auto job = plan_shard(model.request(2, true));
  const auto before = snapshot(model.temp.path());
  std::set<std::string> failed;
  for (int failing = 0;; ++failing) {
    REQUIRE((snapshot(model.temp.path()) == before));
    TestStorage test(exchange);
    int steps = 0;
    test.directories.before = [&](const char* step, const fs::path& path) {
      if (steps++ != failing) return;
      failed.insert(step);
      throw Error(ErrorKind::kIo, "made to fail").in(path);
    };
    try {
      const RunResult result = execute(*job, {.stores = test.storage});
      CHECK(result.notes.size() == (steps > failing ? 1 : 0));  // the last flush, after all names were given
      break;
    } catch (const Error& error) {
      check_error(error, {.kind = ErrorKind::kIo, .says = "made to fail"});
    }
  }
  CHECK(read_ranks(model.temp / "out").size() == 2);
  std::set<std::string> expected{"flush", "make", "open", "rename", "space", "writable"};
  if (existing) expected.insert({"claim", "attributes"});
  failed.erase("access");  // only where permissions differ
  CHECK(failed == expected);
}

TEST_CASE("Two runs do not write into one directory at once") {
  const Model model;
  shard(model.request());
  const auto job = plan_shard(model.request(2, true));
  const Staging first(*job, local_storage());
  check_refused([&] { Staging second(*job, local_storage()); },
                {.kind = ErrorKind::kIo, .says = "another run is writing here"});
  CHECK(stale_stagings(local_storage(), *job) == std::vector<fs::path>{first.root()});
}

TEST_CASE("An output directory may have any name that the file system takes, and its stagings are found again") {
  const Model model;
  std::string name = GENERATE(as<std::string>(), "o", std::string(100, 'x'), std::string(101, 'x'),
                              std::string(238, 'x'), std::string(239, 'x'), std::string(255, 'x'), "\u20ac");
  CAPTURE(name);
  while (name.front() == '\xe2' && name.size() + 3 <= 255) name += "\u20ac";
  const std::string similar = name.substr(0, name.size() - 1) + "y";
  const auto job = plan_shard(shard_request(model.temp / "model", model.temp / name, 2));
  {
    const Staging staging(*job, local_storage());
    CHECK(stale_stagings(local_storage(), *job) == std::vector<fs::path>{staging.root()});
    CHECK(stale_stagings(local_storage(), *plan_shard(shard_request(model.temp / "model", model.temp / similar, 2)))
              .empty());
    const std::string made = staging.root().filename().string();
    for (std::size_t at = 0, length = 0; at < made.size(); at += length) {
      length = utf8_length(std::string_view(made).substr(at));
      REQUIRE(length > 0);
    }
  }
  execute(*job, unsynced());
  CHECK(read_ranks(model.temp / name).size() == 2);
  CHECK(stale_stagings(local_storage(), *job).empty());
}

}  // namespace
}  // namespace reshard::test
