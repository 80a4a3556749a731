// What a trainer saves beside the model and the optimizer of a step, and reads back when it goes on: it is carried along
// as it is, and never opened.
#pragma once

#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/source/tags.h"

namespace reshard {

/// Whether the checkpoint is one step of a run, and its config.json lies in the run's directory: its name says so, or it
/// is of a layout that trainers save optimizers in, and in no folder of its own.
bool is_step_of_run(Files& files, const Checkpoint& checkpoint);

/// scheduler.pt, user_content.pt (neuronx_distributed/trainer/checkpoint.py) and trainer_state.json (optimum-neuron), as
/// far as they are there. The checkpoint's own come first; those of the run's directory are of its latest step, and of none
/// where the checkpoint is one of its steps.
/// \throws Error kIo.
std::vector<CopiedFile> trainer_files(Files& files, const Checkpoint& checkpoint);

/// Their names.
inline constexpr const char* kTrainerFiles[] = {"scheduler.pt", "user_content.pt", kTrainerStateFile};
bool is_trainer_file(const std::filesystem::path& name);

}  // namespace reshard
