#pragma once

#include <string>

#include "reshard/engine/publish.h"
#include "reshard/plan/job.h"

namespace reshard::cli {

/// What a job would do, for people: source, mesh, stages, cuts, heads, files, room. At most kTableColumns wide where
/// paths allow it.
std::string dry_run_text(const Job& job, const OutputSpace& space);

}  // namespace reshard::cli
