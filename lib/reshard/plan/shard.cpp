#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/plan/adapters/adapters.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/target/assemble.h"
#include "reshard/plan/target/carried_files.h"
#include "reshard/plan/target/cast_dtypes.h"
#include "reshard/plan/target/checks.h"
#include "reshard/plan/target/config_dtype.h"
#include "reshard/plan/target/dtypes.h"
#include "reshard/plan/target/extra_tensors.h"
#include "reshard/plan/target/outside_links.h"

namespace reshard {
namespace {

std::unique_ptr<Job> plan(Files& files, ShardRequest request) {
  if (request.target.layout == nullptr) request.target.layout = &default_rank_layout();
  const std::string of_states = request.source.with_optimizer ? "with-optimizer" : state_option(request.target);
  if (!request.adapters.empty() && !of_states.empty())
    throw Error(ErrorKind::kUsage,
                fmt::format("`{}` has no effect with `adapter`: only adapters are written", of_states))
        .hint("leave out one of the two");
  request.source.with_optimizer = !of_states.empty();
  validate_takes_states(request.source, request.adapters.empty() ? *request.target.layout : adapter_layout());
  if (!request.adapters.empty() && !request.source.config.empty())
    throw Error(ErrorKind::kUsage, "`config` has no effect: adapters are sharded by the config.json beside the model")
        .in(request.source.path);
  if (!request.adapters.empty() && request.dtype)
    throw Error(ErrorKind::kUsage, "`dtype` is about models: convert casts an adapter").in(request.source.path);
  if (!request.adapters.empty()) return plan_shard_adapters(files, request);
  mesh_of(request.target);  // what is wrong with the request is told before anything is read
  validate_request(request.target);
  if (files.is_same(request.source.path, request.output_directory))
    throw Error(ErrorKind::kUsage, "the output directory is the model's own")
        .in(request.output_directory)
        .hint("choose another output directory");
  Checkpoint checkpoint =
      read_whole(files, request.source.path, context_of(request.source, ConfigUse::kNeeded, request.target.layout));
  validate_has_states(request.source, checkpoint);
  auto job = start_job("shard", checkpoint, request.output_directory, request.force);
  note_states_left(*job, checkpoint, *request.target.layout);
  validate_against_model(job->source, *checkpoint.model, request.source.path, request.source.extra);
  std::vector<LogicalTensor> logical = job->source.state_dict();
  ProgramOptions options;
  options.dropped = take_extra_tensors(*job, request.source.extra, request.target, &*checkpoint.model, logical);
  take_dtypes(files, *job, checkpoint, *request.target.layout, request.dtype, logical);
  for (std::string& name :
       plan_target(files, *job, request.target, &*checkpoint.model, logical, checkpoint.states_or_null()))
    options.dropped.push_back(std::move(name));
  add_states(job->source, std::move(checkpoint.states.map), job->target.same);
  options.partial_target = job->shares_directory;
  job->program = make_program(job->source, job->target, options);
  carry_companions(files, *job, checkpoint, {request.output_directory});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_shard(Files& files, const ShardRequest& request) {
  std::unique_ptr<Job> job = plan(files, request);
  leave_out_outside_links(files, *job, request.source, request.adapters);
  return job;
}

}  // namespace reshard
