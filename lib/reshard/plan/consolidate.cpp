#include "reshard/base/error.h"
#include "reshard/io/storage.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/plan/job.h"
#include "reshard/plan/tags.h"
#include "reshard/plan/target.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Adapters have their own adapter_config.json.
std::unique_ptr<Job> plan_adapters(ConsolidateRequest request, const FoundCheckpoint& found,
                                   const std::vector<AdapterFolder>& adapters) {
  if (!request.config.empty())
    throw Error(ErrorKind::kUsage, "--config has no effect: these are adapters, which need no config.json")
        .in(found.path);
  if (request.max_shard_bytes)
    throw Error(ErrorKind::kUsage, "--max-shard-size is about models: adapters have one file each").in(found.path);
  request.checkpoint_directory = found.path;
  auto job = plan_consolidate_adapters(request, adapters);
  job->notes.insert(job->notes.begin(), found.notes.begin(), found.notes.end());
  return job;
}

/// Beside the folder with the ranks: NxD has it in the folder of a tag, whose config.json may be one level up.
fs::path default_output(const Checkpoint& checkpoint) {
  const fs::path name = fs::absolute(checkpoint.path / "").lexically_normal().parent_path().filename();
  const bool tag = checkpoint.shards_kind == ShardsKind::kNxd && name != describe(ShardsKind::kOptimum).folder;
  return tag ? checkpoint.path : checkpoint.directory;
}

std::unique_ptr<Job> plan(const ConsolidateRequest& request) {
  const FoundCheckpoint found = find_checkpoint(request.checkpoint_directory, request.tag, TagContent::kShards);
  if (const auto adapters = adapters_to_consolidate(found.path); !adapters.empty())
    return plan_adapters(request, found, adapters);
  Checkpoint checkpoint = read_sharded(found.path, ConfigUse::kStrict, request.spec, request.heads, {request.config});
  checkpoint.notes.insert(checkpoint.notes.begin(), found.notes.begin(), found.notes.end());
  auto job = start_job("consolidate", checkpoint, request.output_directory.value_or(default_output(checkpoint)),
                       request.force);
  if (job->source.tensor_count() == 0) throw Error(ErrorKind::kBadInput, "holds no tensors").in(checkpoint.path);
  prove_outside(job->output_directory, checkpoint);
  note_adapters_left(*job, checkpoint.directory);
  plan_hf_target(*job, request.format, request.max_shard_bytes.value_or(kMaxShardBytes), job->source.state_dict());
  ProgramOptions options;
  options.check_replicas = request.check_replicas;
  job->program = make_program(job->source, job->target, options);
  carry_companions(*job, checkpoint, {job->output_directory, checkpoint.path});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_consolidate(const ConsolidateRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
