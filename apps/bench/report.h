#pragma once

#include <string>
#include <vector>

#include "machine.h"
#include "moves.h"
#include "options.h"
#include "planning.h"

namespace reshard::bench {

/// All measurements.
struct Report {
  Machine machine;
  std::vector<Table> tables;
  std::vector<PlanningRow> planning;
};

/// Formats tables of at most 100 columns.
std::string report_text(const Report& report, const Options& options);

/// Formats one JSON document with every run.
std::string report_json(const Report& report, const Options& options);

}  // namespace reshard::bench
