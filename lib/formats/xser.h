#pragma once

#include <filesystem>

#include "reshard/formats/container.h"

namespace reshard {

/// The key of a pair in Container::metadata whose value is the name of a tensor that is split over expert parallel ranks.
inline constexpr const char* kXserExpertParallel = "expert_model_parallel";

/// Whether PATH is an xser container: a file of torch.save with the folder PATH.tensors beside it.
bool is_xser(const std::filesystem::path& path);

/// Reads an xser container (torch_xla/utils/serialization.py): a state dict whose tensors are references, each to
/// PATH.tensors/tensor_TID.pt, a file of torch.save with that one tensor. PATH.info.pt, where it is there, must agree with
/// what they hold. Files: PATH first, then tensor files in the order of the state dict; one file is open at a time.
/// \throws Error as read_torch does, and kBadInput where a tensor file is missing or holds something else.
Container read_xser(const std::filesystem::path& path);

}  // namespace reshard
