#pragma once

#include <string>

#include "job_report.h"

namespace reshard::cli {

/// Describes a job to the user: source, mesh, stages, cuts, heads, files, disk space. At most table_columns() wide if
/// paths permit.
std::string dry_run_text(const JobReport& report);

/// Describes the use of the source's tensor bytes: placed, compared as replicas, or left out by an option.
std::string read_text(const JobReport& report);

}  // namespace reshard::cli
