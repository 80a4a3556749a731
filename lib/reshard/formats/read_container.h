#pragma once

#include <filesystem>
#include <future>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"

namespace reshard {

/// Endings of the names of files that contain tensors in one of our formats.
inline constexpr std::string_view kContainerEndings[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"};

/// Reads the container at `path` in the format it is known to have. Its files have stamps from before they were read.
/// \throws Error kBadInput, kUnsupported or kIo, as the reader of the format does.
Container read_container(Files& files, const std::filesystem::path& path, Format format);

/// Reads several containers at once, as read_each does.
/// \returns what read_container returned or threw for each path, in the order of `paths`.
std::vector<std::future<Container>> read_containers(Files& files, std::span<const std::filesystem::path> paths,
                                                    Format format);

/// The format of the file at `path`, by its first bytes and what stands beside it: torch's zip and legacy files and
/// xser's are told from safetensors, which any other file is taken for.
/// \throws Error kBadInput if there is no such file; kIo.
Format format_of_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
