#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// Key in Container::metadata. Its value is the name of a tensor that is split over expert-parallel ranks.
inline constexpr const char* kXserExpertParallel = "expert_model_parallel";

/// Files of a container: PATH itself, which refers to PATH.tensors/tensor_TID.pt, and PATH.info.pt.
inline constexpr std::string_view kXserTensorsSuffix = ".tensors";
inline constexpr std::string_view kXserInfoSuffix = ".info.pt";
std::filesystem::path xser_tensors_folder(const std::filesystem::path& path);
std::filesystem::path xser_tensor_path(const std::filesystem::path& path, std::uint64_t tid);
std::filesystem::path xser_info_path(const std::filesystem::path& path);
/// Whether `name` is the name of a file in xser_tensors_folder.
bool is_xser_tensor_name(std::string_view name);

/// Whether PATH is an xser container: a torch.save file with a sibling folder PATH.tensors.
/// \throws Error kIo if this cannot be determined.
bool is_xser(Files& files, const std::filesystem::path& path);

/// Reads an xser container (torch_xla/utils/serialization.py): a state dict whose tensors are references, each to
/// PATH.tensors/tensor_TID.pt, a torch.save file with that tensor. PATH.info.pt, if it exists, must match the tensor
/// files. Container::files are PATH, then the tensor files in the order of the state dict, each with a stamp from
/// before it was read. Opens one file at a time.
/// \throws Error like read_torch, and kBadInput if a tensor file is missing or contains something else.
Container read_xser(Files& files, const std::filesystem::path& path);
/// Same as read_xser, for a rank that shares tensors with another: leaves out tensors whose files are missing, if
/// PATH.info.pt lists them as not split over expert-parallel ranks.
Container read_own_xser(Files& files, const std::filesystem::path& path);
/// Same as read_xser, but the tensor files may be missing: dtypes and shapes come from PATH.info.pt, and referenced
/// tensors have no bytes.
/// \throws Error like read_xser; kBadInput if the info file lacks them.
Container describe_xser(Files& files, const std::filesystem::path& path);

}  // namespace reshard
