#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/peft/sharded_adapter.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/source/tags.h"

namespace reshard {

/// Returns the text of adapter_config.json, changed to name separate linears instead of fused ones; std::nullopt if it
/// stays as it is. Appends notes for the user to `notes`.
std::optional<std::string> separate_config_text(Files& files, const Adapter& adapter, std::vector<std::string>& notes);

/// Adds a PEFT directory of an adapter to the target: its tensors `logical` in one file, and its adapter_config.json.
/// \param folder  relative to the output directory; prefix of tensor names in the program. May be empty.
/// \throws Error kBadInput if the folder contains another adapter's file that loaders would use; kUsage if
/// adapter_config.json of the shards would be replaced.
void add_peft_target(Files& files, Job& job, const Adapter& adapter, std::span<const LogicalTensor> logical,
                     Format format, const std::filesystem::path& folder);

/// Notes the request's options that have no effect on adapters.
void note_idle_options(const SourceRequest& request, Job& job);

/// Notes the adapters next to a model that is consolidated, since they are not.
void note_adapters_left(Files& files, Checkpoint& model);

/// Consolidates sharded adapters into PEFT directories. A single adapter, or `adapter_default` of several, goes into
/// the output directory; `adapter_NAME` goes into its subfolder NAME. By default, the output is written next to the
/// sources.
/// \param found  the checkpoint that contains the adapters.
/// \throws as plan_consolidate.
std::unique_ptr<Job> plan_consolidate_adapters(Files& files, const Request& request, const FoundCheckpoint& found,
                                               const std::vector<AdapterFolder>& adapters);

/// Shards PEFT adapters into ranks of adapter_layout(): adapter_NAME/adapter_shards.
/// \throws as plan_shard.
std::unique_ptr<Job> plan_shard_adapters(Files& files, const Request& request);

/// Adds the target of a job whose source is the adapter `source`: a PEFT directory, or shards. Shards keep the source's
/// partition unless a config.json is given, whose model then determines the partition.
/// \param wanted  the tensors, in their target dtypes.
/// \throws as plan_convert.
void plan_converted_adapter(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& wanted,
                            const Request& request);

}  // namespace reshard
