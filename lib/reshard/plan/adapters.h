#pragma once

#include <memory>
#include <vector>

#include "reshard/layouts/adapter_folders.h"
#include "reshard/plan/job.h"
#include "reshard/plan/peft_adapter.h"

namespace reshard {

/// The adapters that `plan_consolidate` shall put together: those of find_adapter_folders, if `path` holds no shards of
/// a model; else none.
std::vector<AdapterFolder> adapters_to_consolidate(Files& files, const std::filesystem::path& path);

/// Tells whoever consolidates the model in `directory` of the adapters that lie beside it.
void note_adapters_left(Files& files, Job& job, const std::filesystem::path& directory);

/// Sharded adapters into PEFT's directories: a single one into the output directory, of several `adapter_default` there
/// and `adapter_NAME` into NAME. Without an output directory they go beside what they are made of.
/// \throws as plan_consolidate.
std::unique_ptr<Job> plan_consolidate_adapters(Files& files, const ConsolidateRequest& request,
                                               const std::vector<AdapterFolder>& adapters);

/// PEFT's adapters into ranks of adapter_layout(): adapter_NAME/adapter_shards.
/// \throws as plan_shard.
std::unique_ptr<Job> plan_shard_adapters(Files& files, const ShardRequest& request);

}  // namespace reshard
