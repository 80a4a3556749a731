#pragma once

#include <functional>
#include <memory>

#include "arguments.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Plans a job of a command that was parsed, and runs it with the other ranks, or prints it for --dry-run; prints what
/// --json and --quiet ask for.
void run_job(const Command& command, const std::function<std::unique_ptr<Job>()>& plan,
             const CommonArguments& arguments, RunOptions options, Together& together);

/// "reshard: note: …" on standard error, one line each.
void print_notes(const std::vector<std::string>& notes);

/// What the user should know of replicas that differ: one sentence for all that drifted, and the first of the others.
/// What to know of fused linears that get the mean of their lora_A: of all of them where the job has not run (null),
/// else of those whose lora_A differed.
std::vector<std::string> mean_notes(const Job& job, const RunResult* result);

std::vector<std::string> divergent_notes(const std::vector<Divergence>& divergent);

}  // namespace reshard::cli
