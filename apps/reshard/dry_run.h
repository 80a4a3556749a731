#pragma once

#include <string>

#include "reshard/engine/publish/output.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Describes a job to the user: source, mesh, stages, cuts, heads, files, disk space. At most table_columns() wide if
/// paths permit.
std::string dry_run_text(const Job& job, const OutputSpace& space);

/// Describes the use of the source's tensor bytes: placed, compared as replicas, or left out by an option.
std::string read_text(const Program& program);

}  // namespace reshard::cli
