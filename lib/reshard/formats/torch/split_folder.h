// Folders of transformers-neuronx (module.py, save_pretrained_split): a folder with the name of a weights file, one
// torch.save file per tensor in it, and an index of them.
#pragma once

#include <filesystem>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// Index in the folder. Its keys are the names of the tensors, its values those of their files.
inline constexpr const char* kSplitIndexFile = "key_to_filename.json";

/// Reads the folder at `path`. Container::path is its index; Container::files are the index, then the tensor files in
/// the order of the names, each with a stamp from before it was read.
/// \throws Error like read_split_index, read_torch_file and TorchFile::tensor; kBadInput if a file is missing, is listed
///         for two tensors or contains only a shape.
Container read_split_folder(Files& files, const std::filesystem::path& path);

}  // namespace reshard
