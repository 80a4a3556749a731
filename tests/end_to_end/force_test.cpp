// With force, a run replaces files under the names that it writes. Files that others wrote are never deleted.

#include <fmt/format.h>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/test_directories.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A small model, and requests that write it to "out" with force.
struct Forced : Input {
  Request request(const std::string& name, Format format, std::uint32_t tp, std::uint32_t pp = 1) const {
    RequestFields fields{.layout = name, .format = format, .force = true};
    const LayoutTraits& traits = layout(name)->traits();
    if (traits.has_ranks() && !traits.needs_no_mesh()) fields.tp = tp;
    if (pp > 1) fields.pp = pp;
    return convert_request(temp / "model", temp / "out", fields);
  }
  /// The error of a run that must not change anything.
  Error refused(const Request& request) const {
    const auto before = snapshot(temp.path());
    Error error = error_of([&] { convert(request); });
    CHECK((snapshot(temp.path()) == before));
    CHECK(error.kind() == ErrorKind::kBadInput);
    return error;
  }
};

TEST_CASE("The same run again replaces its own outputs, in every layout and format") {
  for (const Layout* to : layouts())
    for (const Format format : to->traits().formats) DYNAMIC_SECTION(to->traits().name << ' ' << name(format)) {
        const Forced forced;
        const Request request = forced.request(to->traits().name, format, 2);
        convert(request);
        const auto first = snapshot(forced.temp.path());
        convert(request);
        CHECK((snapshot(forced.temp.path()) == first));
      }
}

TEST_CASE("The same run with an optimizer replaces its own outputs, and one without leaves the optimizer alone") {
  const Forced forced;
  const bool xser = GENERATE(false, true);
  const std::string to = GENERATE("nxd", "optimum");
  CAPTURE(xser, to);
  Request request = forced.request(to, xser ? Format::kXser : Format::kPytorch, 2);
  const fs::path golden_case = testdata("golden/zero1") / "nxd-llama-dp2-tp2";
  request.source.path = golden_case / "checkpoint/step_3";
  request.source.config = golden_case / "original";
  request.source.with_optimizer = true;
  convert(request);
  const auto first = snapshot(forced.temp.path());
  convert(request);
  CHECK((snapshot(forced.temp.path()) == first));
  request.source.with_optimizer = false;
  const Error error = forced.refused(request);
  CHECK((error.path() + error.what()).find("optim") != std::string::npos);
}

TEST_CASE("An optim folder is never deleted, whoever wrote it") {
  const Forced forced;
  for (const char* to : {"ranks", "optimum"}) {
    CAPTURE(to);
    const Request request = forced.request(to, Format::kPytorch, 2);
    convert(request);
    const fs::path folder = forced / "out" / layout(to)->traits().folder;
    write_file(folder / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", "states");
    for (char c = 'a'; c < 'k'; ++c) write_file(folder / std::string(1, c), "mine");
    check_error(forced.refused(request), {.path = folder, .says = ": optim/, a, b,", .hint = "never deleted"});
    fs::remove_all(forced / "out");
  }
}

TEST_CASE("Rank files of a training program are not deleted where this run writes other names") {
  const Forced forced;
  const fs::path shards = forced / "out/tensor_parallel_shards";
  write_file(shards / "tp_rank_00_pp_rank_00/model.safetensors", "mine");
  write_file(shards / "tp_rank_00_pp_rank_00/checkpoint.pt", "mine");
  check_error(forced.refused(forced.request("ranks", Format::kSafetensors, 1)),
              {.path = shards, .says = "tp_rank_00_pp_rank_00/checkpoint.pt"});
  fs::rename(shards / "tp_rank_00_pp_rank_00", shards / "tp_rank_01_pp_rank_00");
  check_error(forced.refused(forced.request("ranks", Format::kSafetensors, 1)), {.says = ": tp_rank_01_pp_rank_00/"});

  fs::remove_all(shards);
  convert(forced.request("ranks", Format::kSafetensors, 4));
  const fs::path last = shards / "tp_rank_03_pp_rank_00/model.safetensors";
  change_tensors(last, [](TensorMap&) {});  // by a trainer: without the record of the rank
  check_error(forced.refused(forced.request("ranks", Format::kSafetensors, 2)), {.says = ": tp_rank_03_pp_rank_00/"});
  CHECK_NOTHROW(convert(forced.request("ranks", Format::kSafetensors, 4)));  // of its own name
}

TEST_CASE("Fewer ranks and stages replace files that a record proves to be this program's") {
  for (const char* to : {"ranks", "optimum", "nxd"})
    for (const Format format : layout(to)->traits().formats) {
      // The trainer's form of these has no record.
      if (std::string(to) == "ranks" && format != Format::kSafetensors) continue;
      DYNAMIC_SECTION(to << ' ' << name(format)) {
        const Forced forced;
        convert(forced.request(to, format, 2));
        const auto small = snapshot(forced.temp.path());
        fs::remove_all(forced / "out");
        convert(forced.request(to, format, 4, 2));
        convert(forced.request(to, format, 2));
        CHECK((snapshot(forced.temp.path()) == small));
      }
    }
}

TEST_CASE("A manifest proves the files that it lists, until others write them") {
  const Forced forced;
  const auto run = [&](std::uint32_t tp) {
    const auto job = plan_convert(local_storage(), forced.request("ranks", Format::kSafetensors, tp));
    job->manifest = true;
    execute(*job, unsynced());
  };
  run(2);
  const fs::path last = forced / "out/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  flip_byte(last, fs::file_size(last) - 1);
  CHECK_NOTHROW(run(1));  // the record is still there

  run(2);
  change_tensors(last, [](TensorMap&) {});
  CHECK(error_of([&] { run(1); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("What others write into the folder while the run goes on is put back") {
  const Forced forced;
  convert(forced.request("ranks", Format::kSafetensors, 2));
  const auto before = snapshot(forced / "out");
  const auto job = plan_convert(local_storage(), forced.request("ranks", Format::kSafetensors, 1));
  const fs::path late = forced / "out/tensor_parallel_shards/tp_rank_02_pp_rank_00/model.safetensors";
  TestStorage test(GENERATE(true, false));
  bool is_written = false;
  test.directories.before = [&](const char* step, const fs::path&) {
    if (step != std::string("rename") || is_written) return;
    is_written = true;
    write_file(late, "mine");
  };
  RunOptions options = unsynced();
  options.stores = test.storage;
  check_refused([&] { execute(*job, options); }, {});
  CHECK(read_file(late) == "mine");
  fs::remove_all(late.parent_path());
  CHECK((snapshot(forced / "out") == before));
}

TEST_CASE("Whole weights that ranks join are told, since they stay and are what the directory is read as") {
  const Forced forced;
  const auto notes_of = [](const Request& request) {
    const auto job = plan_convert(local_storage(), request);
    std::string text;
    for (const std::string& note : job->notes)
      if (note.find("layout hf, which are kept") != note.npos) text += note;
    return text;
  };
  const auto notes = [&](const char* to) { return notes_of(forced.request(to, Format::kSafetensors, 2)); };
  const std::string out = (forced / "out").string();
  CHECK(notes("ranks").empty());
  fs::create_directories(out);
  CHECK(notes("ranks").empty());
  Random other(9);
  write_model(out, {}, random_tensors({}, other));
  CHECK(notes("hf").empty());
  CHECK(notes("ranks") ==
        fmt::format("{0} contains other weights, in layout hf, which are kept; commands with the path {0} read those, "
                    "and commands with the path {0}/tensor_parallel_shards read the new ones",
                    out));
  CHECK(notes("vllm") == fmt::format("{0} contains other weights, in layout hf, which are kept; commands with the path "
                                     "{0} read those: move them away to read the new ones",
                                     out));
  Request own = forced.request("ranks", Format::kSafetensors, 2);
  own.source.path = out;
  CHECK(notes_of(own).empty());
}

TEST_CASE("Other ranks that stay in the output directory are noted once, with the paths of both") {
  const Forced forced;
  const std::string out = (forced / "out").string();
  execute(*plan_convert(local_storage(), forced.request("nxdi", Format::kSafetensors, 2)), unsynced());
  const auto notes = plan_convert(local_storage(), forced.request("ranks", Format::kSafetensors, 2))->notes;
  const std::string expected = fmt::format(
      "{0} contains another sharded checkpoint, which is kept: commands need the path of one of them, "
      "{0}/weights or {0}/tensor_parallel_shards",
      out);
  CHECK(std::count(notes.begin(), notes.end(), expected) == 1);
}

}  // namespace
}  // namespace reshard::test
