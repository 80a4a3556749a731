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

/// The text of adapter_config.json once it names the separate linears in place of fused ones; nothing where it stays as
/// it is. What to know of it joins `notes`.
std::optional<std::string> separate_config_text(Files& files, const Adapter& adapter, std::vector<std::string>& notes);

/// Adds PEFT's directory of an adapter to the target: its tensors `logical` in one file, and its adapter_config.json.
/// \param folder  relative to the output directory; names in the program begin with it. May be empty.
/// \throws Error kBadInput if a loader would take another adapter's file there; kUsage if adapter_config.json of the
/// shards would be replaced.
void add_peft_target(Files& files, Job& job, const Adapter& adapter, std::span<const LogicalTensor> logical,
                     Format format, const std::filesystem::path& folder);

/// Notes the options of a request for whole adapters that are about models.
void note_idle_options(const SourceRequest& request, Job& job);

/// Tells whoever consolidates a model of the adapters that lie beside it.
void note_adapters_left(Files& files, Checkpoint& model);

/// Sharded adapters into PEFT's directories: a single one into the output directory, of several `adapter_default` there
/// and `adapter_NAME` into NAME. Without an output directory they go beside what they are made of.
/// \param found  where they are.
/// \throws as plan_consolidate.
std::unique_ptr<Job> plan_consolidate_adapters(Files& files, const Request& request, const FoundCheckpoint& found,
                                               const std::vector<AdapterFolder>& adapters);

/// PEFT's adapters into ranks of adapter_layout(): adapter_NAME/adapter_shards.
/// \throws as plan_shard.
std::unique_ptr<Job> plan_shard_adapters(Files& files, const Request& request);

/// Makes the target of a job whose source is the adapter `source`: PEFT's directory, or shards. These are split as they
/// were, unless a config.json says for which model they shall be split anew.
/// \param wanted  the tensors, in the dtypes that they shall have.
/// \throws as plan_convert.
void plan_converted_adapter(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& wanted,
                            const Request& request);

}  // namespace reshard
