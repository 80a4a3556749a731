// Runs of real jobs by several ranks, which are threads here: the bytes of one process, or nothing and one error.

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/some_jobs.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/check/stats.h"
#include "reshard/engine/check/verify.h"
#include "reshard/engine/check/verify_manifest.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/proof/manifest.h"
#include "support/fault_storage.h"
#include "support/page_cache_storage.h"
#include "support/refusals.h"
#include "support/rewrite.h"
#include "support/spoilers.h"
#include "support/thread_ranks.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// As the program has it: all ranks plan, then all run.
RunResult plan_and_run(const Planner& plan, const fs::path& output, RunOptions options, Together& together,
                       bool manifest = false) {
  Progress progress;
  if (options.progress == nullptr) options.progress = &progress;
  std::unique_ptr<Job> job;
  together.step("plan", *options.progress, [&] { job = plan(output); });
  job->manifest = manifest;
  return execute(*job, options, together);
}

/// So that there are lots wherever there are units enough.
constexpr double kAnyPart = 1e9;

RunOptions in_lots(Storage& storage, std::uint64_t unit_bytes, std::uint64_t page_bytes) {
  return {.threads = 1,
          .stores = storage,
          .sync = false,
          .tuning = {.unit_bytes = unit_bytes, .page_bytes = page_bytes, .max_shared_part = kAnyPart}};
}

TEST_CASE("Ranks of these tests have lots, and fewer or none where they would meet in too many pages") {
  const Jobs jobs;
  for (const auto& [what, plan] : jobs.planners) {
    INFO(what);
    const auto job = plan(jobs.output);
    const auto lots = [&](std::uint32_t size, double max_shared_part, std::uint64_t page_bytes) {
      RunOptions options = in_lots(local_storage(), 500ull * size, page_bytes);
      options.tuning.max_shared_part = max_shared_part;
      JobRun run(*job, options);
      run.prepare();
      const JobRun::Dealt dealt = run.deal(size, true);
      CHECK(static_cast<double>(dealt.pages.size_bytes()) <=
            (dealt.shares.lots.empty() ? kAnyPart
                                       : max_shared_part * static_cast<double>(job->program.write_bytes) / size));
      CHECK(run.deal(size, false).shares.lots.empty());
      return dealt.shares.lots.size();
    };
    for (const std::uint32_t size : {2u, 7u}) {
      CAPTURE(size);
      CHECK(lots(size, kAnyPart, 64 << 10) > 30ull * size);
      lots(size, 0, 64);
    }
    CHECK(lots(2, 1, 64) > 0);
  }
}

TEST_CASE("Two to seven ranks write the bytes of one process, whatever their threads and memory") {
  const Jobs jobs;
  Sample sample(4);
  for (const auto& [what, plan] : jobs.planners) {
    const fs::path whole = jobs.temp / "whole" / what, parts = jobs.temp / "parts";
    const auto job = plan(whole);
    job->manifest = true;
    const RunResult expected = execute(*job, unsynced());
    const auto files = snapshot(whole);
    for (std::uint32_t size = 2; size <= 7; ++size) {
      if (sample.skips()) continue;
      CAPTURE(what, size);
      RunResult result;
      check_none_threw(run_ranks(size, [&, &plan = plan](Together& together) {
        // The smaller the units, the more lots.
        RunOptions options = in_lots(local_storage(), 500ull * size, std::uint64_t{1} << (6 + 5 * (size % 3)));
        options.threads = 1 + together.rank() % 3;
        options.max_memory_bytes = std::uint64_t{40} << (20 + together.rank() % 2);
        const RunResult one = plan_and_run(plan, parts, options, together, true);
        if (together.leads()) result = one;
      }));
      CHECK((snapshot(parts) == files));
      CHECK(result.files == expected.files);
      CHECK(result.written_bytes == expected.written_bytes);
      CHECK(result.read_bytes == expected.read_bytes);
      fs::remove_all(parts);
    }
  }
}

TEST_CASE("Machines whose caches differ write the bytes of one process: no page gets bytes of two ranks") {
  const Jobs jobs;
  Sample sample(5);
  for (const auto& [what, plan] : jobs.planners) {
    const auto files = written_by(*plan(jobs.output));
    for (const std::uint64_t page_bytes : {64u, 512u, 4096u})
      for (std::uint32_t size = 2; size <= 5; ++size) {
        if (sample.skips()) continue;
        CAPTURE(what, page_bytes, size);
        std::deque<PageCacheStorage> machines;
        for (std::uint32_t rank = 0; rank < size; ++rank) machines.emplace_back(page_bytes);
        check_none_threw(run_ranks(size, [&, &plan = plan](Together& together) {
          RunOptions options = in_lots(machines[together.rank()], 1000, page_bytes);
          options.threads = 0;
          plan_and_run(plan, jobs.output, options, together);
        }));
        CHECK((snapshot(jobs.output) == files));
        fs::remove_all(jobs.output);
      }
  }
}

TEST_CASE("A rank that is done with its share does a part of a slower one's") {
  const Jobs jobs;
  const Planner& plan = jobs.planners.front().second;
  const auto job = plan(jobs.output);
  const auto expected = written_by(*job);
  std::vector<FaultStorage> storages(2);
  Progress progress[2];
  std::atomic<bool> is_late{false};
  // Rank 1 waits with its first write until rank 0 has done more than its share.
  storages[1].before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation != FaultStorage::Operation::kWrite) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (progress[0].done_bytes < job->program.write_bytes * 11 / 20 && !progress[1].stop) {
      if (std::chrono::steady_clock::now() > until) is_late = true;
      if (is_late) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  check_none_threw(run_ranks(2, [&](Together& together) {
    RunOptions options = in_lots(storages[together.rank()], 500, 64);
    options.progress = &progress[together.rank()];
    plan_and_run(plan, jobs.output, options, together);
  }));
  CHECK_FALSE(is_late);
  CHECK(progress[0].done_bytes + progress[1].done_bytes == job->program.write_bytes);
  CHECK((snapshot(jobs.output) == expected));
}

TEST_CASE("Storage that fails at any operation of any rank publishes nothing, and all ranks throw the same") {
  const Jobs jobs;
  const std::uint64_t seed = GENERATE(from_range(seeds(8)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const auto& [what, plan] = jobs.planners[pick(random, 0, jobs.planners.size() - 1)];
  const auto size = static_cast<std::uint32_t>(pick(random, 2, 4));
  const std::uint64_t unit_bytes = pick(random, 0, 1) ? 1000 : 1 << 20;  // with lots, and without
  const auto run = [&, &plan = plan](std::vector<FaultStorage>& storages) {
    return run_ranks(size, [&](Together& together) {
      plan_and_run(plan, jobs.output, in_lots(storages[together.rank()], unit_bytes, 64), together);
    });
  };
  const auto before = snapshot(jobs.temp.path());
  std::vector<FaultStorage> storages(size);
  check_none_threw(run(storages));
  const auto expected = snapshot(jobs.output);
  fs::remove_all(jobs.output);
  bool any_threw = false;
  for (std::uint32_t failing = 0; failing < size; ++failing)
    for (std::uint64_t at = 0; at < storages[failing].operations(); at += pick(random, 1, 30)) {
      INFO(what << ", rank " << failing << " of " << size << " fails at operation " << at);
      std::vector<FaultStorage> failing_storages(size);
      failing_storages[failing].fail_at = at;
      const auto thrown = run(failing_storages);
      // Others have done what it did before, or the outputs had their names and only the staging directory was left.
      if (failing_storages[failing].operations() <= at || fs::exists(jobs.output)) {
        check_none_threw(thrown);
        REQUIRE((snapshot(jobs.output) == expected));
        fs::remove_all(jobs.output);
        remove_dead_runs(local_storage(), *plan(jobs.output));
        continue;
      }
      any_threw = true;
      check_error(agreed_error(thrown), {.kind = ErrorKind::kIo, .says = "rank " + std::to_string(failing)});
      REQUIRE((snapshot(jobs.temp.path()) == before));
    }
  CHECK(any_threw);
}

TEST_CASE("A signal to one rank in the middle of any step ends all, and nothing is left") {
  const Jobs jobs;
  const Planner& plan = jobs.planners.front().second;
  const auto before = snapshot(jobs.temp.path());
  for (const std::uint32_t signalled : {0u, 1u, 2u})
    for (const std::uint64_t number : {0u, 5u, 12u, 30u}) {
      INFO("rank " << signalled << ", operation " << number);
      std::vector<FaultStorage> storages(3);
      std::vector<Progress> progress(3);
      storages[signalled].before = [&](FaultStorage::Operation, std::uint64_t at) {
        if (at >= number) progress[signalled].stop = true;
      };
      const auto thrown = run_ranks(3, [&](Together& together) {
        RunOptions options = unsynced();
        options.stores = storages[together.rank()];
        options.progress = &progress[together.rank()];
        options.tuning.max_shared_part = kAnyPart;
        plan_and_run(plan, jobs.output, options, together);
      });
      if (storages[signalled].operations() <= number) continue;  // that rank has less to do
      CHECK(agreed_error(thrown).kind() == ErrorKind::kInterrupted);
      CHECK((snapshot(jobs.temp.path()) == before));
    }
}

TEST_CASE("When a rank dies nothing is published, and the others end") {
  const Jobs jobs;
  const auto before = snapshot(jobs.temp.path());
  const std::uint32_t dying = GENERATE(0u, 1u);
  const bool early = GENERATE(true, false);
  const auto work = [&](Together& together) {
    if (early && together.rank() == dying) throw Death();
    std::unique_ptr<Job> job;
    Progress progress;
    together.step("plan", progress, [&] { job = jobs.plan(); });
    if (!early && together.rank() == dying) throw Death();
    execute(*job, unsynced(), together);
  };
  const auto thrown = run_ranks(3, work, std::chrono::milliseconds(300));
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    if (rank != dying) CHECK((thrown[rank] && thrown[rank]->kind() == ErrorKind::kLost));
  CHECK((snapshot(jobs.temp.path()) == before));
}

TEST_CASE("Ranks with other options, or that see another source, are told before anything is written") {
  const Jobs jobs;
  const auto before = snapshot(jobs.temp.path());
  const auto refused = [&](std::uint32_t size, ErrorKind kind, const std::string& what, const auto& work) {
    check_error(agreed_error(run_ranks(size, work)), {.kind = kind, .what = what});
    CHECK((snapshot(jobs.temp.path()) == before));
  };
  const auto plan_of = [&](std::uint32_t rank) { return jobs.planners[rank == 1 ? 1 : 0].second; };
  refused(3, ErrorKind::kUsage, "rank 1 on n0 was given other options than rank 0 on n0 and would behave differently",
          [&](Together& together) { plan_and_run(plan_of(together.rank()), jobs.output, unsynced(), together); });
  refused(2, ErrorKind::kUsage,
          "rank 1 on n0 was given other options than rank 0 on n0 and would behave differently: --manifest besides; "
          "--tp 4 in place of --tp 2; without --force",
          [&](Together& together) {
            if (together.leads())
              together.set_given({{"--force", ""}, {"--tp", "2"}, {"--pad", ""}});
            else
              together.set_given({{"--manifest", ""}, {"--pad", ""}, {"--tp", "4"}});
            plan_and_run(plan_of(0), jobs.output, unsynced(), together, together.rank() == 1);
          });
  refused(2, ErrorKind::kUsage,
          "rank 0 on n0 writes to " + jobs.output.string() + ", and rank 1 on n0 to " + jobs.output.string() + "2",
          [&](Together& together) {
            plan_and_run(plan_of(0), jobs.output.string() + (together.leads() ? "" : "2"), unsynced(), together);
          });
}

/// Ranks that each convert the files in a directory of their own.
std::vector<std::optional<Error>> run_on(const std::vector<fs::path>& sources, const fs::path& output) {
  return run_ranks(static_cast<std::uint32_t>(sources.size()), [&](Together& together) {
    const Planner plan = [&](const fs::path& directory) {
      Request request = convert_request(sources[together.rank()], directory);
      request.target.layout = layout("hf");
      return plan_convert(request);
    };
    plan_and_run(plan, output, unsynced(), together);
  });
}

TEST_CASE("Ranks may read copies of one checkpoint, and not files of another form or with other data") {
  const Jobs jobs;
  const fs::path model = jobs.temp / "model", copy = jobs.temp / "copy";
  fs::copy(model, copy, fs::copy_options::recursive);
  check_none_threw(run_on({model, model, copy}, jobs.output));
  fs::remove_all(jobs.output);
  const fs::path file = copy / "model-00002-of-00002.safetensors";
  const std::string good = read_file(file);
  flip_byte(file, good.size() - 1);
  check_error(agreed_error(run_on({model, model, copy}, jobs.output)),
              {.what = "rank 2 on n1 reads other files than rank 0 on n0: model-00002-of-00002.safetensors has "
                       "different data there",
               .unwritten = jobs.output});
  write_file(file, good);
  change_tensors(file, [](TensorMap& tensors) {
    Dims& shape = tensors.at("model.norm.weight").shape;
    shape = {1, shape[0]};
  });
  check_error(agreed_error(run_on({model, copy}, jobs.output)),
              {.says = "rank 1 on n0 reads other files than rank 0 on n0", .unwritten = jobs.output});
}

TEST_CASE("A plan that fails on one rank is told with that rank, and one that fails on all without") {
  const Jobs jobs;
  const Planner& plan = jobs.planners.front().second;
  const auto one = run_ranks(3, [&](Together& together) {
    const Planner mine = [&](const fs::path& output) {
      if (together.rank() == 2) throw Error(ErrorKind::kBadInput, "no such directory").in("/checkpoints");
      return plan(output);
    };
    plan_and_run(mine, jobs.output, unsynced(), together);
  });
  CHECK(std::string(agreed_error(one).what()) == "rank 2 on n1: /checkpoints: no such directory");
  const auto all = run_ranks(3, [&](Together& together) {
    plan_and_run(plan, jobs.temp / "model", unsynced(), together);  // an output that is an input
  });
  CHECK_THAT(agreed_error(all).what(), !Says("rank"));
}

TEST_CASE("A rank that does not see the staging directory says what has to be shared") {
  const Jobs jobs;
  const auto job = jobs.plan();
  const PreparedRun missing{jobs.temp / ".out.reshard-abcdef", {}, false, 0};
  check_refused([&] { JobRun(*job, unsynced()).attach(missing); },
                {.kind = ErrorKind::kIo,
                 .says = "was created by another rank of this run, but is not visible here",
                 .hint = "all ranks share"});
}

std::vector<std::uint32_t> all_of(const Checkpoint& checkpoint) {
  std::vector<std::uint32_t> tensors(checkpoint.map.logical.size());
  std::iota(tensors.begin(), tensors.end(), 0u);
  return tensors;
}

TEST_CASE("What is read by several ranks is what one reads: values, digests, differences, divergent replicas") {
  const Jobs jobs;
  TensorMap tensors = read_tensors(jobs.temp / "model/model-00001-of-00002.safetensors");
  fs::copy(jobs.temp / "model", jobs.temp / "other", fs::copy_options::recursive);
  for (auto& [name, tensor] : tensors)
    if (name.size() % 2 == 0) tensor.bytes[tensor.bytes.size() / 2] ^= 1;
  write_safetensors(jobs.temp / "other/model-00001-of-00002.safetensors", tensors);
  const Checkpoint a = read_checkpoint(jobs.temp / "model", {ConfigUse::kLenient});
  const Checkpoint b = read_checkpoint(jobs.temp / "other", {ConfigUse::kLenient});
  const std::vector<std::uint32_t> wanted = all_of(a);
  const auto stats = compute_stats(a.map, wanted, unsynced());
  const auto digests = compute_digests(a.map, wanted, unsynced());
  const Verification differences = verify(a.map, b.map, {}, unsynced());
  std::vector<FileDigest> files;  // that all differ
  for (const auto& entry : fs::directory_iterator(jobs.temp / "model"))
    files.push_back({entry.path().filename().string(), {}});
  const FilesVerification hashed = verify_files(jobs.temp / "model", files, unsynced());
  CHECK(hashed.different.size() == files.size());
  REQUIRE(differences.different.size() > 2);
  for (const std::uint32_t size : {2u, 3u, 7u}) {
    CAPTURE(size);
    std::mutex mutex;
    check_none_threw(run_ranks(size, [&](Together& together) {
      const auto ranks_stats = compute_stats(a.map, wanted, unsynced(), together);
      const auto ranks_digests = compute_digests(a.map, wanted, unsynced(), true, together);
      const Verification ranks_differences = verify(a.map, b.map, {}, unsynced(), together);
      const FilesVerification ranks_hashed = verify_files(jobs.temp / "model", files, unsynced(), together);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        CHECK(ranks_stats[i].count == stats[i].count);
        CHECK(ranks_stats[i].min == stats[i].min);
        CHECK(ranks_stats[i].finite_sum == stats[i].finite_sum);
        CHECK((ranks_digests[i] == digests[i]));
      }
      REQUIRE(ranks_differences.different.size() == differences.different.size());
      for (std::size_t i = 0; i < differences.different.size(); ++i) {
        CHECK(ranks_differences.different[i].name == differences.different[i].name);
        CHECK(ranks_differences.different[i].first == differences.different[i].first);
        CHECK(ranks_differences.different[i].a == differences.different[i].a);
      }
      CHECK(ranks_differences.compared_bytes == differences.compared_bytes);
      CHECK(ranks_hashed.different == hashed.different);
    }));
  }
}

TEST_CASE("All ranks know of replicas that any of them found to differ") {
  const Jobs jobs;
  const fs::path rank = jobs.temp / "shards-safetensors/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  TensorMap tensors = read_tensors(rank);
  std::size_t norms = 0;
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with("norm.weight")) continue;
    tensor.bytes[0] ^= 1;
    ++norms;
  }
  rewrite_safetensors(rank, tensors);
  const Checkpoint shards = read_checkpoint(jobs.temp / "shards-safetensors", {ConfigUse::kLenient});
  std::vector<std::size_t> found(3);
  check_none_threw(run_ranks(3, [&](Together& together) {
    RunOptions options = unsynced();
    options.replicas = Replicas::kFirst;
    options.on_divergence = [&](const Divergence&) { ++found[together.rank()]; };
    compute_digests(shards.map, all_of(shards), options, true, together);
  }));
  CHECK(found == std::vector<std::size_t>(3, norms));
}

TEST_CASE("A report is the same after it was sent, and any part of its bytes is an error") {
  const Jobs jobs;
  const auto job = jobs.planners.at(2).second(jobs.output);
  job->manifest = true;
  JobRun run(*job, unsynced());
  run.prepare();
  ShareReport report = run.run({1, 3});
  report.divergent.push_back({"t", "differs", true, 0.5, 0.25, 3, 4});
  report.inexact = {2, 5};
  report.lost = {{2, {7, 3}}};
  report.hashing_seconds = 0.5;
  const std::string whole = report_bytes(report);
  const ShareReport sent = read_report(whole, job->target);
  CHECK(report_bytes(sent) == whole);
  CHECK(to_hex(sha256(std::as_bytes(std::span(whole)))) ==
        "796e1bbf26ec6f11217263b98b94465cee3b66c4969c0dc1735a005726aeafac");
  CHECK(sent.crcs == report.crcs);
  CHECK(sent.written_files == report.written_files);
  CHECK(sent.inexact == report.inexact);
  CHECK(sent.lost.at(0).values.saturated == 7);
  CHECK(sent.lost.at(0).values.zeroed == 3);
  CHECK(sent.divergent.at(0).text == "differs");
  const auto check_bad = [](std::string_view bytes, const reshard::TargetMap& target) {
    CHECK(error_of([&] { read_report(bytes, target); }).kind() == ErrorKind::kBadInput);
  };
  for (std::size_t size = 0; size < whole.size(); size += 7)
    check_bad(std::string_view(whole).substr(0, size), job->target);
  check_bad(whole, {});
}

}  // namespace
}  // namespace reshard::test
