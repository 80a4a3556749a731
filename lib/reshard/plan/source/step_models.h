#pragma once

#include <filesystem>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/found.h"

namespace reshard {

/// Whether `directory` contains a model or an adapter as Hugging Face's libraries save them.
bool holds_hugging_face(Files& files, const std::filesystem::path& directory);

/// A model that a trainer saves below the folder of a step.
struct StepModel {
  std::filesystem::path path;  // relative to the step
  bool is_sharded = false;     // or a file, which is consolidated, too
};

/// Returns the models below the folder of a step, sorted: verl's `actor` and `critic`, NeMo-RL's `policy/weights/model`,
/// ColossalAI's `modeling`, Accelerate's file `pytorch_model_fsdp.bin`. Omits optimizers, hidden folders and links.
std::vector<StepModel> models_in_step(Files& files, const std::filesystem::path& step);

/// Returns the only model below the folder of a step, or `step` itself if no folder contains a model.
/// \throws Error kBadInput if there are several, or if it has whole weights and `kind` needs shards.
std::filesystem::path model_in_step(Files& files, const std::filesystem::path& step, SourceKind kind);

}  // namespace reshard
