#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/plan/job.h"
#include "reshard/plan/target.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Job> plan(const ConsolidateRequest& request) {
  if (const auto adapters = adapters_to_consolidate(request.checkpoint_directory); !adapters.empty())
    return plan_consolidate_adapters(request, adapters);
  Checkpoint checkpoint = read_sharded(request.checkpoint_directory, ConfigUse::kStrict, request.spec, request.heads);
  auto job =
      start_job("consolidate", checkpoint, request.output_directory.value_or(checkpoint.directory), request.force);
  prove_outside(job->output_directory, checkpoint);
  note_adapters_left(*job, checkpoint.directory);
  plan_hf_target(*job, request.format, request.max_shard_bytes, job->source.state_dict());
  ProgramOptions options;
  options.check_replicas = request.check_replicas;
  job->program = make_program(job->source, job->target, options);
  carry_companions(*job, checkpoint.directory, {job->output_directory, checkpoint.path});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_consolidate(const ConsolidateRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
