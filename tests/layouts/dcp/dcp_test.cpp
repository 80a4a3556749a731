// Directories of torch.distributed.checkpoint as a layout: which files are its own, and what their names and times say.

#include "support/dcp.h"

#include <chrono>
#include <filesystem>
#include <set>

#include "reshard/layouts/core/checkpoint.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

Checkpoint read(const fs::path& path) {
  return read_checkpoint(local_storage(), path, {});
}

/// A tensor of two bytes, on two ranks.
const dcp::Whole kTwoBytes{"part.w", {DType::kU8, {2}, "xy"}, {{{0}, {1}, 0}, {{1}, {1}, 1}}};

/// A tensor of `ranks` bytes, one on each rank, each of which saves without the others.
void write_ranks(const fs::path& directory, std::uint32_t ranks) {
  dcp::Whole tensor{"part.w", {DType::kU8, {ranks}, std::string(ranks, 'x')}, {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) tensor.parts.push_back({{rank}, {1}, rank});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) dcp::write_rank(directory, {tensor}, rank);
}

TEST_CASE("Metadata of all ranks and of each rank belong to the layout, and stay behind") {
  const TempDir temp;
  write_ranks(temp / "dcp", 12);
  write_file(temp / "dcp/config.json", "{}");
  write_file(temp / "dcp/__x.metadata", "mine");
  const Companions found = companion_files(temp / "dcp");
  std::set<std::string> names;
  for (const CopiedFile& file : found.files) names.insert(file.path.string());
  CHECK(names == std::set<std::string>{"__x.metadata", "config.json"});
  for (const char* name : {".metadata", "__0.metadata", "__11.metadata", "__0_0.distcp"})
    CHECK(layout("dcp")->owns(local_storage(), temp / "dcp", name));
  CHECK(layout("dcp")->is_checkpoint({"__0.metadata"}, {}));
  CHECK(layout("dcp")->is_checkpoint({"__0_0.distcp"}, {}));
  CHECK_FALSE(layout("dcp")->is_checkpoint({"__x.metadata"}, {}));
}

TEST_CASE("Files of items whose .metadata was left behind are named, wherever a command looks for them") {
  const TempDir temp;
  dcp::write(temp / "run/step-1", {kTwoBytes});
  fs::remove(temp / "run/step-1/.metadata");
  for (const char* given : {"run/step-1", "run"})
    for (const SourceKind kind : {SourceKind::kAny, SourceKind::kShards, SourceKind::kWhole}) {
      CAPTURE(given);
      check_refused([&] { read_checkpoint(local_storage(), found_at(local_storage(), temp / given, kind), {}); },
                    {.path = temp / "run/step-1",
                     .says = "files of torch.distributed.checkpoint (__0_0.distcp, __1_0.distcp), but no .metadata, "
                             "which describes them",
                     .hint = "does not copy .metadata"});
    }
}

TEST_CASE("Files of items without metadata hide no checkpoint that lies there, or beside them") {
  const TempDir temp;
  for (const char* step : {"run/step-1", "run/step-2"}) dcp::write(temp / step, {kTwoBytes});
  fs::remove(temp / "run/step-2/.metadata");
  const FoundCheckpoint found = find_checkpoint(local_storage(), temp / "run", {});
  CHECK(found.path == temp / "run/step-1");
  REQUIRE(found.notes.size() == 1);
  CHECK_THAT(found.notes[0], Says("step-2 is newer, but incomplete: it contains no .metadata"));

  write_file(temp / "run/step-2/model.safetensors", safetensors_bytes({{"w", {DType::kU8, {2}, "xy"}}}));
  const Checkpoint whole = read(temp / "run/step-2");
  CHECK(whole.layout == layout("hf"));
  CHECK(whole.notes.empty());
}

TEST_CASE("A file of items that is given alone is an error that asks for its directory") {
  const TempDir temp;
  dcp::write(temp / "dcp",
             {{"a", {DType::kU8, {1}, "x"}, {{{0}, {1}, 0}}}, {"b", {DType::kU8, {1}, "x"}, {{{0}, {1}, 0}}}});
  check_refused([&] { read(temp / "dcp/__0_0.distcp"); },
                {.path = temp / "dcp/__0_0.distcp", .hint = "give the directory that contains all"});
}

TEST_CASE("A rank whose metadata is missing between others is named") {
  for (const char* missing : {"__0.metadata", "__1.metadata", "__9.metadata"}) {
    CAPTURE(missing);
    const TempDir temp;
    write_ranks(temp / "dcp", 12);
    CHECK(read(temp / "dcp").map.logical.size() == 1);
    fs::remove(temp / "dcp" / missing);
    check_refused([&] { read(temp / "dcp"); }, {.path = temp / "dcp" / missing, .says = "is missing, although __"});
  }
}

TEST_CASE("A note says that the last ranks may be missing where each has metadata of its own") {
  const TempDir temp;
  write_ranks(temp / "dcp", 2);
  write_file(temp / "dcp/__01.metadata", "no rank's");
  const Checkpoint checkpoint = read(temp / "dcp");
  REQUIRE(checkpoint.notes.size() > 0);
  CHECK_THAT(checkpoint.notes[0],
             Says("the metadata of 2 ranks is read; if that of later ranks is missing, this shows"));
}

/// Sets when a file was written, in seconds after `start`.
void set_time(const fs::path& path, fs::file_time_type start, int seconds) {
  fs::last_write_time(path, start + std::chrono::seconds(seconds));
}

/// The notes of a checkpoint that say that files are newer than their metadata.
std::string notes_on_times(const fs::path& directory) {
  std::string found;
  for (const std::string& note : read(directory).notes)
    if (note.find("after the metadata") != note.npos) found += note;
  return found;
}

TEST_CASE("Files that are newer than .metadata by more than a copy of them takes are of a save that was cut off") {
  const TempDir temp;
  dcp::write(temp / "dcp", {kTwoBytes});
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto set_times = [&](int first_seconds, int second_seconds) {
    set_time(temp / "dcp/__0_0.distcp", saved, first_seconds);
    set_time(temp / "dcp/__1_0.distcp", saved, second_seconds);
  };
  const auto refused = [&](const std::string& file, const std::string& says) {
    check_refused(
        [&] { read(temp / "dcp"); },
        {.path = temp / "dcp" / file, .says = says, .hint = "`touch " + (temp / "dcp/.metadata").string() + "`"});
  };
  set_times(-600, 0);
  CHECK(notes_on_times(temp / "dcp").empty());
  set_times(3, 5);
  CHECK(notes_on_times(temp / "dcp").empty());
  set_times(-60, 42);  // the second of two ranks was written by a later save
  refused("__1_0.distcp", "was written 42 seconds after .metadata, which a save writes last: a later save");
  set_times(3, 90);  // the clocks of two machines differ for one, and the other was written by a later save
  refused("__1_0.distcp", "was written 90 seconds after .metadata");
  set_times(3, 8);  // a copy
  CHECK_THAT(notes_on_times(temp / "dcp"),
             Says("1 file was written up to 8 seconds after the metadata, which a save writes last, such as "
                  "__1_0.distcp: a copy that does not preserve times has this effect; but if a later save into this "
                  "directory was interrupted, the output mixes two steps"));
  fs::resize_file(temp / "dcp/__0_0.distcp", std::uintmax_t{4} << 30);  // at 32 MiB/s, 128 seconds
  fs::resize_file(temp / "dcp/__1_0.distcp", std::uintmax_t{4} << 30);
  set_times(5, 130);
  CHECK_THAT(notes_on_times(temp / "dcp"), Says("1 file was written up to 2 minutes after the metadata"));
  set_times(5, 140);
  refused("__1_0.distcp", "was written 2 minutes after .metadata");
  fs::resize_file(temp / "dcp/__1_0.distcp", std::uintmax_t{1} << 40);
  set_times(5, 310);
  refused("__1_0.distcp", "was written 5 minutes after .metadata");
}

TEST_CASE("Files that are all newer than .metadata are those of a download, however long it took") {
  const TempDir temp;
  dcp::write(temp / "dcp", {kTwoBytes});
  write_ranks(temp / "ranks", 2);
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto check_noted = [&](const std::string& directory, int first_seconds, int second_seconds) {
    set_time(temp / directory / "__0_0.distcp", saved, first_seconds);
    set_time(temp / directory / "__1_0.distcp", saved, second_seconds);
    CHECK_THAT(notes_on_times(temp / directory),
               Says("every file was written after the metadata, which a save writes last: a download has this effect"));
  };
  check_noted("dcp", 6, 7200);
  check_noted("dcp", 36000, 600);
  for (const char* name : {"__0.metadata", "__1.metadata"}) set_time(temp / "ranks" / name, saved, 0);
  check_noted("ranks", 600, 1200);
  set_time(temp / "ranks/__1.metadata", saved, 700);  // of a later save than the other
  CHECK(error_of([&] { read(temp / "ranks"); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("What is not read takes its time in a copy, and is no reason to refuse what is") {
  const TempDir temp;
  std::vector<dcp::Whole> wholes;
  for (const auto& [name, file] : {std::pair("model.w", 0u), {"optim.state.w.exp_avg", 1u}, {"model.v", 2u}})
    wholes.push_back({name, {DType::kU8, {1}, "x"}, {{{0}, {1}, file}}});
  dcp::write(temp / "dcp", wholes);
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto read_copy = [&](int first, int of_optimizer, int last) {
    set_time(temp / "dcp/__0_0.distcp", saved, first);
    set_time(temp / "dcp/__1_0.distcp", saved, of_optimizer);
    set_time(temp / "dcp/__2_0.distcp", saved, last);
    return notes_on_times(temp / "dcp");
  };
  REQUIRE(read_copy(-1, -1, -1).empty());
  CHECK_THAT(read_copy(2, 100, 104), Says("1 file was written up to 104 seconds after the metadata"));
  CHECK(read_copy(-1, 100, -1).empty());
  CHECK(error_of([&] { read_copy(2, -1, 104); }).path() == (temp / "dcp/__2_0.distcp").string());
}

TEST_CASE("Where each rank has metadata of its own, ranks of two saves are refused") {
  const TempDir temp;
  write_ranks(temp / "dcp", 3);
  const auto saved = fs::last_write_time(temp / "dcp/__0.metadata");
  const auto set_times = [&](int rank, int file_seconds, int metadata_seconds) {
    set_time(temp / "dcp" / ("__" + std::to_string(rank) + "_0.distcp"), saved, file_seconds);
    set_time(temp / "dcp" / ("__" + std::to_string(rank) + ".metadata"), saved, metadata_seconds);
  };
  const auto refused = [&](const std::string& file, const std::string& says) {
    check_refused([&] { read(temp / "dcp"); }, {.path = temp / "dcp" / file, .says = says});
  };
  set_times(0, -1, 0);
  set_times(1, 28, 30);
  set_times(2, 59, 60);
  CHECK(notes_on_times(temp / "dcp").empty());
  set_times(1, 120, 30);  // a later save of one rank was cut off
  refused("__1_0.distcp", "was written 90 seconds after __1.metadata, which a save writes last");
  set_times(1, 28, 30);
  set_times(2, 159, 160);  // of one rank, a later save is done
  refused("__2_0.distcp", "was written 2 minutes after __1.metadata, which belongs to an earlier save");
}

TEST_CASE("Two chunks of a tensor in one item are refused, and so are items that overlap") {
  const TempDir temp;
  const std::string item = dcp::item_bytes("float32", {2, 2}, std::string(16, 'f'));
  const std::string bucket = safetensors_bytes({{"w", {DType::kF32, {2, 2}, std::string(16, 'f')}}});
  const auto size = static_cast<std::int64_t>(item.size());
  dcp::Metadata metadata;
  metadata.tensors = {{"w", "float32", {4, 2}, {{{0, 0}, {2, 2}, {}}, {{2, 0}, {2, 2}, {}}}}};
  const auto check = [&](const std::string& content, const dcp::Place& first, const dcp::Place& second,
                         const std::string& says) {
    metadata.tensors[0].chunks[0].place = first;
    metadata.tensors[0].chunks[1].place = second;
    write_file(temp / "dcp/__0_0.distcp", content);
    write_file(temp / "dcp/.metadata", dcp::metadata_bytes(metadata));
    if (says.empty()) {
      CHECK(read(temp / "dcp").map.logical.size() == 1);
      return;
    }
    check_refused([&] { read(temp / "dcp"); }, {.path = temp / "dcp/__0_0.distcp", .tensor = "w", .says = says});
  };
  const char* file = "__0_0.distcp";
  check(item + item, {file, 0, size, {}}, {file, size, size, {}}, "");
  check(item + item, {file, 0, size, {}}, {file, 0, size, {}},
        "its chunks at [0, 0] and [2, 0] would be the same item");
  check(item + item, {file, size, size, {}}, {file, size - 1, size, {}}, "bytes that also belong to w");
  check(bucket, {file, 0, 0, {}}, {file, 0, 0, {}}, "would be the same item");
  check(item, {file, 0, size, {}}, {"./__0_0.distcp", 0, size, {}}, "would be the same item");
}

TEST_CASE("A prefix that torch could not read is refused before anything is planned") {
  for (const char* prefix : {"\xff", "a.\xc3", "a\n", ".a", "a..b"}) {
    CAPTURE(prefix);
    TargetRequest request;
    request.layout = layout("dcp");
    request.options.set("prefix", prefix);
    check_refused([&] { layout("dcp")->plan(request, {}); }, {.kind = ErrorKind::kUsage, .says = "`prefix`: "});
  }
}

}  // namespace
}  // namespace reshard::test
