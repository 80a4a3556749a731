// A run in steps: real jobs as several shares, in any order, by one process or as several would.

#include "reshard/engine/job_run.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/some_jobs.h"
#include "reshard/engine/execute.h"
#include "reshard/plan/plan.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/requests.h"
#include "support/rewrite.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint32_t> shuffled(Random& random, std::uint32_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

TEST_CASE("One to seven shares in any order write the same bytes and checksums as one, by one process or several") {
  const Jobs jobs;
  const auto& [what, plan] = jobs.planners.at(GENERATE(range<std::size_t>(0, Jobs::kCount)));
  CAPTURE(what);
  const auto job = plan(jobs.output);
  JobRun at_once(*job, unsynced());
  at_once.prepare();
  ShareReport all = at_once.run();
  const std::vector<std::uint32_t> crcs = all.crcs;
  at_once.publish(std::move(all));
  const auto expected = snapshot(jobs.output);
  fs::remove_all(jobs.output);
  CHECK(expected.size() > 2);
  for (std::uint32_t count = 1; count <= 7; ++count) {
    const bool several_processes = (count + what.size()) % 2 == 0;
    CAPTURE(count, several_processes);
    Random random(count);
    FaultStorage storage;
    JobRun leader(*job, random_run(random, storage));
    leader.prepare();
    ShareReport merged;
    const auto run_share = [&](JobRun& run, std::uint32_t index) {
      ShareReport report = run.run({index, count});
      run.finish(report);
      merge(merged, std::move(report));
    };
    for (const std::uint32_t index : shuffled(random, count)) {
      if (several_processes && random() % 3) {  // the leader runs some, too
        const auto own_job = plan(jobs.output);
        JobRun other(*own_job, random_run(random, storage));
        other.attach(leader.prepared());
        run_share(other, index);
      } else {
        run_share(leader, index);
      }
      CHECK_FALSE(fs::exists(jobs.output));
    }
    CHECK(merged.crcs == crcs);
    CHECK(merged.written_bytes == job->program.write_bytes);
    leader.publish(std::move(merged));
    CHECK((snapshot(jobs.output) == expected));
    fs::remove_all(jobs.output);
  }
}

/// How often each byte of each source file is read by `count` shares.
std::vector<std::vector<unsigned>> reads_of(const Job& job, std::uint32_t count) {
  FaultStorage storage;
  JobRun run(job, {.stores = storage, .sync = false});
  run.prepare();
  for (std::uint32_t index = 0; index < count; ++index) run.run({index, count});
  std::vector<std::vector<unsigned>> counts;
  std::uint64_t read = 0;
  for (const SourceFile& file : job.source.files) {
    counts.push_back(storage.read_counts(file.path, file.size_bytes));
    read += std::accumulate(counts.back().begin(), counts.back().end(), std::uint64_t{0});
  }
  CHECK(read == job.program.read_bytes + job.program.check_bytes);
  return counts;
}

TEST_CASE("Shares together read each byte of the source as often as one run does") {
  const Jobs jobs;
  for (const auto& [what, plan] : jobs.planners) {
    if (what == Jobs::kTransposed) continue;  // blocks of columns, which are read with what lies between
    CAPTURE(what);
    const auto job = plan(jobs.output);
    const auto whole = reads_of(*job, 1);
    for (const std::uint32_t count : {2u, 3u, 7u}) CHECK((reads_of(*job, count) == whole));
  }
}

TEST_CASE("A run in which a share is missing, or ran twice, is not published") {
  const Jobs jobs;
  const auto job = jobs.plan();
  const auto before = snapshot(jobs.temp.path());
  for (const std::vector<std::uint32_t>& ran :
       {std::vector<std::uint32_t>{0, 2}, std::vector<std::uint32_t>{0, 1, 2, 1}, std::vector<std::uint32_t>{}}) {
    CAPTURE(ran);
    JobRun run(*job, unsynced());
    run.prepare();
    ShareReport merged;
    const auto run_and_publish = [&] {
      for (const std::uint32_t index : ran) merge(merged, run.run({index, 3}));
      run.publish(std::move(merged));
    };
    CHECK(error_of(run_and_publish).kind() == ErrorKind::kInternal);
  }
  CHECK((snapshot(jobs.temp.path()) == before));
}

TEST_CASE("Reports of shares of different programs are not merged") {
  ShareReport merged;
  merge(merged, {{1, 2}, {0}, 3, {}});
  merge(merged, {{3, 2}, {1}, 4, {}});
  CHECK(merged.crcs == std::vector<std::uint32_t>{2, 0});
  CHECK(merged.written_files == std::vector<std::uint32_t>{0, 1});
  CHECK(merged.written_bytes == 7);
  CHECK(error_of([&] { merge(merged, {{1}, {}, 0, {}}); }).kind() == ErrorKind::kInternal);
}

TEST_CASE("A share that fails leaves nothing published and nothing behind") {
  const Jobs jobs;
  const auto before = snapshot(jobs.temp.path());
  for (const auto& [what, plan] : jobs.planners)
    for (const std::uint32_t failing : {0u, 1u, 2u}) {
      CAPTURE(what, failing);
      const auto job = plan(jobs.output);
      FaultStorage storage;
      {
        JobRun run(*job, {.stores = storage, .sync = false});
        run.prepare();
        for (std::uint32_t index = 0; index < failing; ++index) run.finish(run.run({index, 3}));
        storage.fail_at = storage.operations() + 2;
        CHECK(error_of([&] { run.run({failing, 3}); }).kind() == ErrorKind::kIo);
        CHECK_FALSE(fs::exists(jobs.output));
      }
      CHECK((snapshot(jobs.temp.path()) == before));
    }
}

TEST_CASE("Steps that come before the ones they need are refused, and nothing is left") {
  const Jobs jobs;
  const auto job = jobs.plan();
  const auto before = snapshot(jobs.temp.path());
  {
    JobRun run(*job, unsynced());
    CHECK(error_of([&] { run.run(); }).kind() == ErrorKind::kInternal);
    run.prepare();
    CHECK(error_of([&] { run.run({3, 3}); }).kind() == ErrorKind::kUsage);
    JobRun other(*job, unsynced());
    other.attach(run.prepared());
    CHECK(error_of([&] { other.publish(other.run()); }).kind() == ErrorKind::kInternal);
  }
  CHECK((snapshot(jobs.temp.path()) == before));
}

TEST_CASE("A replica that several shares find to differ is reported once, whatever their order") {
  const TempDir temp;
  Random random(5);
  write_model(temp / "model", {}, random_tensors({}, random));
  shard(shard_request(temp / "model", temp / "shards", 2));
  const fs::path rank = temp / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  TensorMap tensors = read_tensors(rank);
  for (char& byte : tensors.at("model.norm.weight").bytes) byte = static_cast<char>(byte ^ 1);  // in every share
  rewrite_safetensors(rank, tensors);
  const auto job = plan_consolidate(consolidate_request(temp / "shards", temp / "whole"));
  const std::uint32_t count = 997;  // so that even a norm of 32 bytes is cut
  std::set<std::string> texts;
  for (const std::uint64_t seed : {1, 2}) {
    JobRun run(*job, {.sync = false, .replicas = Replicas::kFirst});
    run.prepare();
    Random order(seed);
    ShareReport merged;
    std::size_t reported = 0;
    for (const std::uint32_t index : shuffled(order, count)) {
      ShareReport report = run.run({index, count});
      reported += report.divergent.size();
      merge(merged, std::move(report));
    }
    CHECK(reported > 1);
    const RunResult result = run.publish(std::move(merged));
    REQUIRE(result.divergent.size() == 1);
    texts.insert(result.divergent.front().text);
    fs::remove_all(temp / "whole");
  }
  CHECK(texts.size() == 1);
}

TEST_CASE("What a process wrote is on stable storage once it has finished its share") {
  const Jobs jobs;
  for (const auto& [what, plan] : jobs.planners) {
    CAPTURE(what);
    const auto job = plan(jobs.output);
    FaultStorage storage;
    JobRun leader(*job, unsynced()), other(*job, {.stores = storage});
    leader.prepare();
    other.attach(leader.prepared());
    const ShareReport report = other.run();
    CHECK(storage.count(FaultStorage::Operation::kSync) == 0);
    other.finish(report);
    CHECK(report.written_files.size() > 1);
    CHECK(storage.count(FaultStorage::Operation::kSync) == report.written_files.size());
  }
}

}  // namespace
}  // namespace reshard::test
