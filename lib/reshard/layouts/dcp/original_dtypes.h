#pragma once

#include <filesystem>

#include "reshard/layouts/core/checkpoint.h"

namespace reshard {

// Files that NeMo Automodel writes into .hf_metadata/ (components/checkpoint/addons.py): the dtype of each tensor before
// training, and the number of its file.
inline constexpr const char* kOriginalDtypesFile = "fqn_to_dtype_mapping.json";
inline constexpr const char* kOriginalFilesFile = "fqn_to_file_index_mapping.json";

/// Sets LogicalTensor::model_dtype to the dtype that each tensor had before training, if kOriginalDtypesFile is in
/// one of model_directories. As in Automodel, tensors that are not floating-point keep their dtype, and so
/// do, with a note, those that were quantised or that the file does not have.
/// \returns the file that changes a dtype; empty if none does.
/// \throws Error kBadInput if the file is no object of strings.
std::filesystem::path take_original_dtypes(Files& files, Checkpoint& checkpoint);

}  // namespace reshard
