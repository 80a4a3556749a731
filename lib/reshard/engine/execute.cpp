#include "reshard/engine/execute.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/wire.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/ranks/agreement.h"
#include "reshard/engine/ranks/run_fingerprint.h"
#include "reshard/engine/units/lots.h"

namespace reshard {
namespace {

/// Merges the reports of all ranks on rank 0.
ShareReport merged(const ShareReport& own, const TargetMap& target, Together& together) {
  ShareReport all;
  for (const std::string& bytes : together.gather("merge", report_bytes(own))) {
    if (!together.leads()) break;
    merge(all, read_report(bytes, target));
  }
  return all;
}

RunResult run_alone(JobRun& run) {
  run.prepare();
  ShareReport report = run.run();
  run.finish(report);
  return run.publish(std::move(report));
}

/// Messages by which ranks hand over lots.
Talk exchange(Lots& lots) {
  const auto tell = [&lots] {
    return lots.tell(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  };
  return {tell, [&lots](const std::vector<std::string>& told) { return lots.hear(told); }};
}

RunResult run_with_others(JobRun& run, const Job& job, const RunOptions& options, Together& together) {
  Progress& progress = *options.progress;
  const bool leads = together.leads();
  std::function<void()> clean_up;
  if (leads)
    clean_up = [&] {
      if (!run.keep(ErrorKind::kInterrupted)) run.abandon();
    };
  const auto prepare = [&] {
    if (leads) run.prepare(together.size());
  };
  together.step("prepare", progress, prepare, clean_up);
  const std::string invited = together.from_leader("join", leads ? wire_bytes(run.prepared()) : std::string());
  ShareReport report;
  Lots lots(together.rank());
  const auto copy = [&] {
    throw_if_stopped(options);
    if (!leads) run.attach(WireReader(invited).read<PreparedRun>());
    report = run.run({together.rank(), together.size()}, &lots);
    run.finish(report);
  };
  together.step("copy", progress, copy, clean_up, exchange(lots));
  ShareReport all = merged(report, job.target, together);
  RunResult result;
  bool published = false;
  const auto publish = [&] {
    if (!leads) return;
    throw_if_stopped(options);
    result = run.publish(std::move(all));
    published = true;
  };
  try {
    together.step("publish", progress, publish, clean_up);
  } catch (const RankLost& lost) {
    if (!published) throw;
    result.notes.output(std::string("the outputs are complete, but then this rank ") + lost.what());
  }
  return result;
}

}  // namespace

RunResult execute(const Job& job, RunOptions options) {
  Together alone;
  return execute(job, std::move(options), alone);
}

RunResult execute(const Job& job, RunOptions options, Together& together) {
  Progress own;
  if (options.progress == nullptr) options.progress = &own;
  if (options.threads == 0) options.threads = default_threads(together);
  JobRun run(job, options);
  if (together.size() > 1) validate_same_run(run_identity(job, options), options, together);
  try {
    return together.size() > 1 ? run_with_others(run, job, options, together) : run_alone(run);
  } catch (Error& error) {
    if (run.keep(error.kind()))
      error.hint((error.hint().empty() ? "" : error.hint() + "; ") + "the data written so far stays in " +
                 run.prepared().root.string() + ", and `resume` continues from there");
    else if (error.kind() == ErrorKind::kInterrupted && !options.resume && options.sync)
      error.hint("nothing is left of this run; one that is started with `resume` keeps its progress");
    throw;
  } catch (...) {
    run.keep(ErrorKind::kInternal);
    throw;
  }
}

}  // namespace reshard
