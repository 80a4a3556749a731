#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/found.h"

namespace reshard {

/// Reads and validates all headers and metadata of a checkpoint of the kind that was looked for. Logical tensors are in
/// the model's order if the model is known. The model's family is that of `context`, else the built-in family of its
/// model_type, else the plan in config.json (ConfigPlan). Notes begin with those of `found`. `files` must outlive the
/// model, which reads them to explain misfits. Some files are opened several times: a ListedFiles opens them once.
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_checkpoint(Files& files, const FoundCheckpoint& found, const ReadContext& context);
/// The same for whatever is at `path`, which must not be the directory of a training run (find_checkpoint).
Checkpoint read_checkpoint(Files& files, const std::filesystem::path& path, const ReadContext& context);
/// Reads the sharded adapters in `found`, one after the other, as checkpoints of their own, and passes them to `take`.
/// \throws as read_checkpoint.
void read_each_adapter(Files& files, const FoundCheckpoint& found, const ReadContext& context,
                       const std::function<void(Checkpoint)>& take);
/// Reads the headers of the adapters that PEFT saved in `directories`, see find_peft_adapters.
/// \throws Error as find_peft_adapters; kBadInput, kUnsupported or kIo.
Checkpoint read_peft_adapters(Files& files, const std::vector<std::filesystem::path>& directories);

}  // namespace reshard
