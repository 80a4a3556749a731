#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// How `request` is read for a target of layout `target`.
ReadContext context_of(const SourceRequest& request, ConfigUse use, const Layout* target = nullptr);

/// A job that reads `checkpoint`, whose map and notes it takes over.
std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, std::filesystem::path output_directory,
                               bool force);

/// Makes `job.target` the checkpoint of `logical` that the request asks for, with the `states` of a training run, if they
/// are not null. `model` is that of a target of ranks, and may be null for others.
/// \returns the tensors of the source that checkpoints of this layout do not have.
/// \throws Error kUsage, with what would work; kBadInput if other weights stand in the output directory.
std::vector<std::string> plan_target(Files& files, Job& job, const TargetRequest& request, const Model* model,
                                     const std::vector<LogicalTensor>& logical, const TrainingStates* states = nullptr);

}  // namespace reshard
