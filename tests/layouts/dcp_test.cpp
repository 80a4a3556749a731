// Directories of torch.distributed.checkpoint as a layout: which files are its own, and what their names and times say.

#include "support/dcp.h"

#include <chrono>
#include <filesystem>
#include <set>

#include "reshard/layouts/checkpoint.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

Checkpoint read(const fs::path& path) {
  return read_checkpoint(local_storage(), path, {});
}

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
  const dcp::Whole tensor{"part.w", {DType::kU8, {2}, "xy"}, {{{0}, {1}, 0}, {{1}, {1}, 1}}};
  dcp::write(temp / "run/step-1", {tensor});
  fs::remove(temp / "run/step-1/.metadata");
  using Reader = Checkpoint (*)(Files&, const fs::path&, const ReadContext&);
  for (const char* given : {"run/step-1", "run"})
    for (const Reader read_it : {Reader{&read_checkpoint}, Reader{&read_sharded}, Reader{&read_whole}}) {
      CAPTURE(given);
      const Error error = error_of([&] { read_it(local_storage(), temp / given, {}); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK(error.path() == (temp / "run/step-1").string());
      CHECK_THAT(error.what(), Says("files of torch.distributed.checkpoint (__0_0.distcp, __1_0.distcp), but no "
                                    ".metadata, which says what is in them"));
      CHECK_THAT(error.hint(), Says("a copy with `*` leaves .metadata behind"));
    }
}

TEST_CASE("Files of items without metadata hide no checkpoint that lies there, or beside them") {
  const TempDir temp;
  const dcp::Whole tensor{"part.w", {DType::kU8, {2}, "xy"}, {{{0}, {1}, 0}, {{1}, {1}, 1}}};
  for (const char* step : {"run/step-1", "run/step-2"}) dcp::write(temp / step, {tensor});
  fs::remove(temp / "run/step-2/.metadata");
  const FoundCheckpoint found = find_checkpoint(local_storage(), temp / "run", {});
  CHECK(found.path == temp / "run/step-1");
  REQUIRE(found.notes.size() == 1);
  CHECK_THAT(found.notes[0], Says("step-2 is newer, but not finished: it holds no .metadata"));

  write_file(temp / "run/step-2/model.safetensors", safetensors_bytes({{"w", {DType::kU8, {2}, "xy"}}}));
  const Checkpoint whole = read(temp / "run/step-2");
  CHECK(whole.layout == layout("hf"));
  CHECK(whole.notes.empty());
}

TEST_CASE("A file of items that is given alone is an error that asks for its directory") {
  const TempDir temp;
  dcp::write(temp / "dcp",
             {{"a", {DType::kU8, {1}, "x"}, {{{0}, {1}, 0}}}, {"b", {DType::kU8, {1}, "x"}, {{{0}, {1}, 0}}}});
  const Error error = error_of([&] { read(temp / "dcp/__0_0.distcp"); });
  CHECK(error.path() == (temp / "dcp/__0_0.distcp").string());
  CHECK_THAT(error.hint(), Says("give the directory that holds all of it"));
}

TEST_CASE("A rank whose metadata is missing between others is named") {
  for (const char* missing : {"__0.metadata", "__1.metadata", "__9.metadata"}) {
    CAPTURE(missing);
    const TempDir temp;
    write_ranks(temp / "dcp", 12);
    CHECK(read(temp / "dcp").map.logical.size() == 1);
    fs::remove(temp / "dcp" / missing);
    const Error error = error_of([&] { read(temp / "dcp"); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == (temp / "dcp" / missing).string());
    CHECK_THAT(error.what(), Says("is missing, though there is __"));
  }
}

TEST_CASE("A note says that the last ranks may be missing where each has metadata of its own") {
  const TempDir temp;
  write_ranks(temp / "dcp", 2);
  write_file(temp / "dcp/__01.metadata", "no rank's");
  const Checkpoint checkpoint = read(temp / "dcp");
  REQUIRE(checkpoint.notes.size() > 0);
  CHECK_THAT(checkpoint.notes[0], Says("the metadata of 2 ranks is read; that of ranks behind these"));
}

TEST_CASE("Files that are some seconds newer than .metadata are a note that says what it may mean") {
  const TempDir temp;
  const dcp::Whole tensor{"part.w", {DType::kU8, {2}, "xy"}, {{{0}, {1}, 0}, {{1}, {1}, 1}}};
  dcp::write(temp / "dcp", {tensor});
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto notes = [&](int first_seconds, int second_seconds) {
    fs::last_write_time(temp / "dcp/__0_0.distcp", saved + std::chrono::seconds(first_seconds));
    fs::last_write_time(temp / "dcp/__1_0.distcp", saved + std::chrono::seconds(second_seconds));
    std::string found;
    for (const std::string& note : read(temp / "dcp").notes)
      if (note.find("after .metadata") != note.npos) found += note;
    return found;
  };
  CHECK(notes(-60, 0).empty());
  CHECK(notes(3, 5).empty());
  CHECK_THAT(notes(-60, 42),
             Says("1 file was written up to 42 seconds after .metadata, which a save writes last, such "
                  "as __1_0.distcp: if it is no copy, a later save into this directory did not finish"));
  CHECK_THAT(notes(250, 1000), Says("2 files were written up to 1000 seconds after .metadata"));
}

TEST_CASE("A prefix that torch could not read is refused before anything is planned") {
  for (const char* prefix : {"\xff", "a.\xc3", "a\n", ".a", "a..b"}) {
    CAPTURE(prefix);
    TargetRequest request;
    request.layout = layout("dcp");
    request.options.set("prefix", prefix);
    const Error error = error_of([&] { layout("dcp")->plan(request, {}); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.what(), Says("`prefix`: "));
  }
}

}  // namespace
}  // namespace reshard::test
