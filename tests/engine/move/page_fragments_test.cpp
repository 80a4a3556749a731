#include "reshard/engine/move/page_fragments.h"

#include <map>
#include <set>

#include "engine/some_jobs.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/move/group.h"
#include "support/fault_storage.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::string fragment(std::uint32_t file, std::uint64_t offset_bytes, const std::string& bytes) {
  WireWriter wire;
  wire.add(file);
  wire.add(offset_bytes);
  wire.add(bytes);
  return wire.bytes();
}

constexpr const char* kFirstLine = "reshard fragments 1\n";

struct Target {
  Target() {
    for (const char* name : {"a", "b"}) {
      map.files.emplace_back().path = name;
      map.files.back().size_bytes = 8;
      write_file(temp / name, "........");
    }
  }
  std::vector<std::uint32_t> write(const std::vector<std::string>& names, bool skip_torn) {
    return write_fragments(local_storage(), temp.path(), names, map, skip_torn);
  }

  TempDir temp;
  reshard::TargetMap map;
};

TEST_CASE("Fragments get to their places, and what is torn is skipped where that may be") {
  Target target;
  const std::string text = sealed(kFirstLine, fragment(1, 6, "xy") + fragment(0, 0, "ab") + fragment(1, 0, "z"));
  write_file(target.temp / "whole", text);
  write_file(target.temp / "torn", text.substr(0, text.size() - 1));
  CHECK(target.write({"whole"}, false) == std::vector<std::uint32_t>{0, 1});
  CHECK(read_file(target.temp / "a") == "ab......");
  CHECK(read_file(target.temp / "b") == "z.....xy");
  CHECK(target.write({"torn"}, true).empty());
  check_refused([&] { target.write({"torn"}, false); }, {.path = target.temp / "torn"});
}

TEST_CASE("Fragments of another target are refused, and nothing is written past a file's end") {
  Target target;
  const std::string max(8, '\xff');
  const std::string bad =
      GENERATE_REF(fragment(2, 0, "x"), fragment(0, 8, "x"), fragment(0, 7, "xy"), fragment(0, UINT64_MAX, "x"),
                   fragment(0, 0, "x").substr(0, 20), fragment(0, 0, "").substr(0, 16) + max);
  write_file(target.temp / "bad", sealed(kFirstLine, bad));
  CHECK(error_of([&] { target.write({"bad"}, GENERATE(true, false)); }).kind() == ErrorKind::kBadInput);
  CHECK(read_file(target.temp / "a") == "........");
  CHECK(fs::file_size(target.temp / "b") == 8);
}

TEST_CASE("Fragments that could not be written are not forgotten") {
  const TempDir temp;
  FaultStorage storage;
  PageFragments fragments(storage, temp.path(), ".journal-0-0-", {}, false);
  fragments.add(0, 4, std::as_bytes(std::span("abc", 3)));
  bool fails = true;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (fails && operation == FaultStorage::Operation::kWrite) throw Error(ErrorKind::kNoSpace, "full");
  };
  CHECK(error_of([&] { fragments.spill(); }).kind() == ErrorKind::kNoSpace);
  CHECK(fragments.files().empty());
  fails = false;
  CHECK(error_of([&] { fragments.spill(); }).kind() == ErrorKind::kIo);  // its torn file is there
  fs::remove(temp / ".journal-0-0-fragments-0");
  fragments.spill();
  CHECK(fragments.files() == std::vector<std::string>{".journal-0-0-fragments-0"});
  CHECK(is_whole_fragments_file(local_storage(), temp / ".journal-0-0-fragments-0"));
}

TEST_CASE("One process has no fragments, and a share has a file of them for its pages that others write to") {
  const Jobs jobs;
  const auto job = jobs.plan();
  {
    JobRun whole(*job, unsynced());
    whole.prepare();
    CHECK(whole.run().fragment_files.empty());
  }
  JobRun shared(*job, unsynced());
  shared.prepare();
  const ShareReport report = shared.run({1, 3});
  REQUIRE(report.fragment_files.size() == 1);
  CHECK(fs::is_regular_file(shared.prepared().root / report.fragment_files.front()));
  CHECK(is_fragments_file(report.fragment_files.front()));
}

/// The shares that write to each page of each target file, byte by byte.
std::vector<std::map<std::uint64_t, std::set<std::uint32_t>>> writers_of_pages(
    const ProgramMaps& maps, const Program& program, const std::vector<std::vector<Part>>& shares,
    std::uint64_t page_bytes) {
  std::vector<std::map<std::uint64_t, std::set<std::uint32_t>>> writers(maps.target->files.size());
  for (std::uint32_t share = 0; share < shares.size(); ++share)
    for (const Part& part : shares[share]) {
      const Transfer& transfer = program.transfers[part.transfer];
      const Block block(part.box(transfer.tensor(maps)));
      for (const Group& group :
           groups_of(*maps.target, transfer.writes(maps), maps.target->logical[*transfer.target], block)) {
        const StoredTensor& stored = maps.target->stored[group.stored];
        for (const Runs& runs : group.runs)
          runs.for_each([&](std::uint64_t a, std::uint64_t) {
            for (std::uint64_t at = stored.offset_bytes + a; at < stored.offset_bytes + a + runs.run_bytes; ++at)
              writers[stored.file][at / page_bytes].insert(share);
          });
      }
    }
  return writers;
}

TEST_CASE("Shared pages are those in which several shares have bytes, whatever the page's size") {
  const Jobs jobs;
  for (const auto& [what, plan] : jobs.planners) {
    const auto job = plan(jobs.output);
    const ProgramMaps maps = job->maps();
    for (const std::uint32_t count : {1u, 2u, 5u, 7u}) {
      const Units units(maps, job->program, count, false);
      std::vector<std::vector<Part>> shares(count);
      for (std::uint32_t share = 0; share < count; ++share) units.add_parts(share, shares[share]);
      for (const std::uint64_t page_bytes : {1u, 32u, 512u, 65536u}) {
        CAPTURE(what, count, page_bytes);
        const SharedPages pages(maps, job->program, shares, page_bytes);
        const auto writers = writers_of_pages(maps, job->program, shares, page_bytes);
        // No tensor of these jobs is cut across its rows: no page is told that is not shared.
        bool any = false, right = true;
        for (std::uint32_t file = 0; file < writers.size(); ++file)
          for (const auto& [page, of_page] : writers[file]) {
            any = any || of_page.size() > 1;
            right = right && pages.contains(file, page * page_bytes) == (of_page.size() > 1);
          }
        CHECK(right);
        CHECK(pages.empty() == !any);
        if (page_bytes == 1 || count == 1) CHECK_FALSE(any);
      }
    }
  }
}

}  // namespace
}  // namespace reshard::test
