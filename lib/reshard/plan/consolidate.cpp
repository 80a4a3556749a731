#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/plan/adapters/adapters.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/source/tags.h"
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

/// Adapters have their own adapter_config.json.
std::unique_ptr<Job> plan_adapters(Files& files, const ConsolidateRequest& request, const FoundCheckpoint& found,
                                   const std::vector<AdapterFolder>& adapters) {
  if (!request.source.config.empty())
    throw Error(ErrorKind::kUsage, "`config` has no effect: these are adapters, which need no config.json")
        .in(found.path);
  if (request.dtype)
    throw Error(ErrorKind::kUsage, "`dtype` is about models: convert casts an adapter once it is whole").in(found.path);
  for (const std::string& option : request.target.options.names())
    throw Error(ErrorKind::kUsage, "`" + option + "` is about models: adapters have one file each").in(found.path);
  return plan_consolidate_adapters(files, request, found, adapters);
}

std::filesystem::path output_of(Files& files, const ConsolidateRequest& request, const Checkpoint& checkpoint) {
  if (request.output_directory) return *request.output_directory;
  if (checkpoint.layout == nullptr)
    throw Error(ErrorKind::kUsage, "no output directory was given for the model in this file")
        .in(checkpoint.path)
        .hint("name an output directory after the file");
  if (const auto directory = checkpoint.layout->default_output(files, checkpoint.found())) return *directory;
  throw Error(ErrorKind::kUsage,
              fmt::format("no output directory was given, and layout {} has no folder beside which "
                          "the model could be written: it would be mixed with the checkpoint's files",
                          checkpoint.layout->traits().name))
      .in(checkpoint.path)
      .hint("name an output directory after the checkpoint's");
}

std::unique_ptr<Job> plan(Files& files, ConsolidateRequest request) {
  if (request.target.layout == nullptr) request.target.layout = &whole_layout();
  validate_request(request.target);
  validate_takes_states(request.source, *request.target.layout);
  const FoundCheckpoint found = find_checkpoint(files, request.source.path, request.source.tag, TagContent::kShards);
  if (files.is_directory(found.path))
    if (const auto adapters = adapters_meant(files, found.path); !adapters.empty())
      return plan_adapters(files, request, found, adapters);
  Checkpoint checkpoint = read_sharded(files, found.path, context_of(request.source, ConfigUse::kStrict));
  if (request.target.options.choice(kExperts) == "separate") separate_experts(checkpoint);
  checkpoint.notes.insert(checkpoint.notes.begin(), found.notes.begin(), found.notes.end());
  validate_names(checkpoint, *request.target.layout);
  auto job = start_job("consolidate", checkpoint, output_of(files, request, checkpoint), request.force);
  validate_has_tensors(job->source, checkpoint);
  validate_outside(files, job->output_directory, checkpoint);
  note_adapters_left(files, *job, checkpoint.directory);
  ProgramOptions options;
  std::vector<LogicalTensor> logical = job->source.state_dict();
  options.dropped = take_extra_tensors(*job, request.source.extra, request.target,
                                       checkpoint.model ? &*checkpoint.model : nullptr, logical);
  take_dtypes(files, *job, checkpoint, *request.target.layout, request.dtype, logical);
  for (std::string& name :
       plan_target(files, *job, request.target, checkpoint.model ? &*checkpoint.model : nullptr, logical))
    options.dropped.push_back(std::move(name));
  options.check_replicas = request.check_replicas;
  job->program = make_program(job->source, job->target, options);
  carry_companions(files, *job, checkpoint, {job->output_directory, checkpoint.path});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_consolidate(Files& files, const ConsolidateRequest& request) {
  std::unique_ptr<Job> job = plan(files, request);
  leave_out_outside_links(files, *job, request.source);
  return job;
}

}  // namespace reshard
