#pragma once

#include "arguments.h"
#include "reshard/engine/job_run.h"
#include "reshard/plan/job.h"

namespace reshard::cli {

/// Runs a planned job, or prints it for --dry-run, and prints what --json and --quiet ask for.
void run_job(Job& job, const CommonArguments& arguments, RunOptions options);

/// "reshard: note: …" on standard error, one line each.
void print_notes(const std::vector<std::string>& notes);

/// What the user should know of replicas that differ: one sentence for all that drifted, and the first of the others.
/// What to know of fused linears that get the mean of their lora_A: of all of them where the job has not run (null),
/// else of those whose lora_A differed.
std::vector<std::string> mean_notes(const Job& job, const RunResult* result);

std::vector<std::string> divergent_notes(const std::vector<Divergence>& divergent);

}  // namespace reshard::cli
