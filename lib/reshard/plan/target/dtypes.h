#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Gives tensors the dtype that the request asks for, else the one of the model or of the target's layout.
/// \throws Error as cast_tensors and take_config_dtype.
void take_dtypes(Files& files, Job& job, const Checkpoint& source, const Layout& target, std::optional<DType> dtype,
                 std::vector<LogicalTensor>& logical);

/// Gives tensors the dtype that the model has them in (SourceMap::model_dtypes), and notes it.
void take_model_dtypes(Job& job, std::vector<LogicalTensor>& logical);

/// Gives the floating tensors of 16 and 32 bits the dtype that `config` says, where the layout asks for it, and notes
/// it.
/// \throws Error kBadInput, naming the key, if what it says is no floating-point dtype.
void take_config_dtype(Files& files, Job& job, const Layout& layout, const std::filesystem::path& config,
                       std::vector<LogicalTensor>& logical);

/// Notes that tensors are float32 though config.json says another dtype, and how to cast them. Of a checkpoint that no
/// training program saved, only if all its floats are. Notes also what config.json says if that is no such dtype.
void note_config_dtype(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& logical);

}  // namespace reshard
