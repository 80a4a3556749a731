#include "reshard/base/error.h"
#include "reshard/io/local_storage.h"
#include "reshard/layouts/training_layout.h"
#include "reshard/layouts/whole_map.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/job.h"
#include "reshard/plan/target.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Job> plan(ShardRequest request) {
  if (request.target.layout == nullptr) request.target.layout = &default_rank_layout();
  if (!request.adapters.empty()) return plan_shard_adapters(request);
  mesh_of(request.target);  // what is wrong with the request is told before anything is read
  validate_request(request.target);
  std::error_code ignored;
  if (fs::equivalent(request.source.path, request.output_directory, ignored))
    throw Error(ErrorKind::kUsage, "the output directory is the model's own")
        .in(request.output_directory)
        .hint("choose another OUT_DIR");
  Checkpoint checkpoint = read_whole(request.source.path, context_of(request.source, ConfigUse::kNeeded));
  auto job = start_job("shard", checkpoint, request.output_directory, request.force);
  prove_against_model(job->source, *checkpoint.model, request.source.path);
  std::vector<LogicalTensor> logical = job->source.state_dict();
  take_config_dtype(*job, *request.target.layout, checkpoint.config, logical);
  ProgramOptions options;
  options.dropped = plan_target(*job, request.target, &*checkpoint.model, logical);
  options.partial_target = job->shares_directory;
  job->program = make_program(job->source, job->target, options);
  carry_companions(*job, checkpoint, {request.output_directory});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_shard(const ShardRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
