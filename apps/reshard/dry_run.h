#pragma once

#include <string>

#include "reshard/engine/publish/output.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// What a job would do, for people: source, mesh, stages, cuts, heads, files, room. At most table_columns() wide where
/// paths allow it.
std::string dry_run_text(const Job& job, const OutputSpace& space);

/// Where every byte of the source's tensors goes: placed, a replica, or left out by an option.
std::string read_text(const Program& program);

}  // namespace reshard::cli
