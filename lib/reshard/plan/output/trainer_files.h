// Files that a trainer saves next to the model and the optimizer of a step, and reads when it resumes. They are copied
// unchanged and never opened.
#pragma once

#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/source/tags.h"

namespace reshard {

/// Whether the checkpoint is one step of a run whose directory contains config.json: it is named like a step, or its
/// layout is one in which trainers save optimizers and it has no folder of its own.
bool is_step_of_run(Files& files, const Checkpoint& checkpoint);

/// Returns the files among scheduler.pt, user_content.pt (neuronx_distributed/trainer/checkpoint.py) and
/// trainer_state.json (optimum-neuron) that exist. The checkpoint's own take precedence over those in the run's
/// directory, which belong to its latest step and are ignored if the checkpoint is one step.
/// \throws Error kIo.
std::vector<CopiedFile> trainer_files(Files& files, const Checkpoint& checkpoint);

inline constexpr const char* kTrainerFiles[] = {"scheduler.pt", "user_content.pt", kTrainerStateFile};
bool is_trainer_file(const std::filesystem::path& name);

}  // namespace reshard
