#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// The key of a pair in Container::metadata whose value is the name of a tensor that is split over expert parallel
/// ranks.
inline constexpr const char* kXserExpertParallel = "expert_model_parallel";

/// The files of a container: PATH itself, which refers to PATH.tensors/tensor_TID.pt, and PATH.info.pt.
inline constexpr std::string_view kXserTensorsSuffix = ".tensors";
inline constexpr std::string_view kXserInfoSuffix = ".info.pt";
std::filesystem::path xser_tensors_folder(const std::filesystem::path& path);
std::filesystem::path xser_tensor_path(const std::filesystem::path& path, std::uint64_t tid);
std::filesystem::path xser_info_path(const std::filesystem::path& path);
/// Whether a file of xser_tensors_folder has this name.
bool is_xser_tensor_name(std::string_view name);

/// Whether PATH is an xser container: a file of torch.save with the folder PATH.tensors beside it.
/// \throws Error kIo where it cannot be known.
bool is_xser(Files& files, const std::filesystem::path& path);

/// Reads an xser container (torch_xla/utils/serialization.py): a state dict whose tensors are references, each to
/// PATH.tensors/tensor_TID.pt, a file of torch.save with that one tensor. PATH.info.pt, where it is there, must agree
/// with what they hold. Files: PATH first, then tensor files in the order of the state dict; one file is open at a
/// time. Each has a stamp from before it was read.
/// \throws Error as read_torch does, and kBadInput where a tensor file is missing or holds something else.
Container read_xser(Files& files, const std::filesystem::path& path);
/// The same where the tensor files may be missing: dtypes and shapes are those of PATH.info.pt, and the tensors that are
/// references have no bytes.
/// \throws Error as read_xser; kBadInput where the info file does not say them.
Container describe_xser(Files& files, const std::filesystem::path& path);

}  // namespace reshard
