#pragma once

#include "arguments.h"
#include "reshard/plan/job.h"

namespace reshard::cli {

/// Runs a planned job, or prints it for --dry-run, and prints what --json and --quiet ask for.
void run_job(const Job& job, const CommonArguments& arguments, RunOptions options);

/// "reshard: note: …" on standard error, one line each.
void print_notes(const std::vector<std::string>& notes);

/// What the user should know of replicas that differ: one sentence for all that drifted, and the first of the others.
std::vector<std::string> divergent_notes(const std::vector<Divergence>& divergent);

}  // namespace reshard::cli
