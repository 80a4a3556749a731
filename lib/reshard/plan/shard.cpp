#include "reshard/base/error.h"
#include "reshard/io/storage.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/plan/job.h"
#include "reshard/plan/target.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Job> plan(const ShardRequest& request) {
  if (!request.adapters.empty()) return plan_shard_adapters(request);
  mesh_of(request.sharding);  // a wrong one is told before anything is read
  std::error_code ignored;
  if (fs::equivalent(request.model_directory, request.output_directory, ignored))
    throw Error(ErrorKind::kUsage, "the output directory is the model's own")
        .in(request.output_directory)
        .hint("choose another OUT_DIR");
  Checkpoint checkpoint = read_hugging_face(request.model_directory, ConfigUse::kNeeded, request.spec);
  auto job = start_job("shard", checkpoint, request.output_directory, request.force);
  prove_against_model(job->source, *checkpoint.model, request.model_directory);
  std::vector<LogicalTensor> logical = job->source.state_dict();
  if (request.sharding.form.kind == ShardsKind::kNxdi) take_config_dtype(*job, checkpoint.config, logical);
  plan_sharded_target(*job, request.sharding, *checkpoint.model, logical);
  ProgramOptions options;
  options.partial_target = request.sharding.form.is_partial();
  job->program = make_program(job->source, job->target, options);
  carry_companions(*job, checkpoint, {request.output_directory});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_shard(const ShardRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
