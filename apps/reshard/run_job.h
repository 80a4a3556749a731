#pragma once

#include <functional>
#include <memory>

#include "arguments.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Plans the job of a parsed command, and either runs it with the other ranks or, for --dry-run, prints it. Prints
/// results as --json and --quiet request.
void run_job(const Command& command, const std::function<std::unique_ptr<Job>()>& plan,
             const CommonArguments& arguments, RunOptions options, Together& together);

/// Prints each note as "reshard: note: …" on a line of standard error.
void print_notes(const Notes& notes);

}  // namespace reshard::cli
