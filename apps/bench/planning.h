#pragma once

#include <functional>
#include <string>
#include <vector>

#include "machine.h"
#include "options.h"
#include "process.h"

namespace reshard::bench {

/// A command that reads only headers, and its time limit.
struct PlanningRow {
  std::string name;
  std::vector<std::string> argv;
  double bar_seconds = 0;
  std::vector<Run> runs;
};

/// Memory limit of planning for any model.
inline constexpr std::uint64_t kPlanningBarBytes = std::uint64_t{512} << 20;

/// Makes huge sparse checkpoints and measures planning with them.
std::vector<PlanningRow> measure_planning(const Options& options, const WorkDir& work,
                                          const std::function<void(const std::string&)>& log);

}  // namespace reshard::bench
