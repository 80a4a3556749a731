#include "reshard/engine/execute.h"

#include <functional>
#include <utility>

#include "reshard/base/wire.h"
#include "reshard/engine/run_fingerprint.h"
#include "reshard/engine/same_run.h"

namespace reshard {
namespace {

/// The reports of all ranks as one, on rank 0.
ShareReport merged(const ShareReport& own, const TensorMap& target, Together& together) {
  WireWriter wire;
  write_report(wire, own);
  ShareReport all;
  for (const std::string& bytes : together.gather("merge", std::move(wire.bytes()))) {
    if (!together.leads()) break;
    WireReader reader(bytes);
    merge(all, read_report(reader, target));
  }
  return all;
}

RunResult run_alone(JobRun& run) {
  run.prepare();
  ShareReport report = run.run();
  run.finish(report);
  return run.publish(std::move(report));
}

}  // namespace

RunResult execute(const Job& job, RunOptions options) {
  Together alone;
  return execute(job, std::move(options), alone);
}

RunResult execute(const Job& job, RunOptions options, Together& together) {
  Progress own;
  if (options.progress == nullptr) options.progress = &own;
  Progress& progress = *options.progress;
  if (options.threads == 0) options.threads = default_threads(together);
  JobRun run(job, options);
  if (together.size() == 1) return run_alone(run);
  validate_same_run(run_identity(job, options), together);
  const bool leads = together.leads();
  std::function<void()> clean_up;
  if (leads) clean_up = [&] { run.abandon(); };
  const auto prepare = [&] {
    if (leads) run.prepare();
  };
  together.step("prepare", progress, prepare, clean_up);
  const std::string root = together.from_leader("join", run.root().string());
  ShareReport report;
  const auto copy = [&] {
    if (!leads) run.attach(root);
    report = run.run({together.rank(), together.size()});
    run.finish(report);
  };
  together.step("copy", progress, copy, clean_up);
  ShareReport all = merged(report, job.target, together);
  RunResult result;
  bool published = false;
  const auto publish = [&] {
    if (!leads) return;
    result = run.publish(std::move(all));
    published = true;
  };
  try {
    together.step("publish", progress, publish, clean_up);
  } catch (const RankLost& lost) {
    if (!published) throw;
    result.notes.push_back(std::string("the outputs are complete, but then ") + lost.what());
  }
  return result;
}

}  // namespace reshard
