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
void print_notes(const std::vector<std::string>& notes);

/// Returns notes on fused linears that get the mean of their lora_A: on all of them if the job has not run (`result` is
/// null), otherwise on those whose lora_A differed.
std::vector<std::string> mean_notes(const Job& job, const RunResult* result);
/// Notes on values that a cast could not represent: those beyond the range of the dtype, and those that became 0.
std::vector<std::string> loss_notes(const RunResult& result);

/// Returns notes on replicas that differ: one sentence for all that drifted, and the first of the others.
std::vector<std::string> divergent_notes(const std::vector<Divergence>& divergent);

}  // namespace reshard::cli
