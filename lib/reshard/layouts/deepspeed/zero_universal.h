#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "reshard/layouts/deepspeed/zero_partitions.h"

namespace reshard {

/// The parameters' folders of a universal checkpoint.
struct UniversalMasters {
  std::vector<ContainerFile> files;  // of fp32.pt; those of ZeroMasters::runs
  ZeroMasters masters;
  TensorCount unread;  // masters, where they are not wanted
  TensorCount state;   // moments, by the files that hold them
};

/// Finds the master weights in `folder`/zero/PARAMETER/fp32.pt: of the parameter's shape, or, as they are made of
/// ZeRO 3, of one dim. Where they are not `wanted`, no file is opened: they and the moments are counted.
/// \param model       says which parameters there are, with their shapes.
/// \param first_file  the number of the first of `files` in runs.
/// \throws Error kBadInput, naming the parameter or its file, if one has no folder, a folder is of none, or a tensor is
/// not of the parameter's shape; as read_zero_parameter.
UniversalMasters read_universal_masters(Files& files, const std::filesystem::path& folder, const ZeroModelStates& model,
                                        bool wanted, std::uint32_t first_file);

}  // namespace reshard
