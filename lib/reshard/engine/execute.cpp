#include "reshard/engine/execute.h"

#include <utility>

namespace reshard {

RunResult execute(const Job& job, RunOptions options) {
  JobRun run(job, std::move(options));
  run.prepare();
  ShareReport report = run.run();
  run.finish(report);
  return run.publish(std::move(report));
}

}  // namespace reshard
