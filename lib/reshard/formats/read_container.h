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

/// Extensions of files that contain tensors in a supported format.
inline constexpr std::string_view kContainerEndings[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"};

/// Reads the container at `path`, whose format must be known. The stamps of its files are taken before they are read.
/// \throws Error kBadInput, kUnsupported or kIo, like the reader of the format.
Container read_container(Files& files, const std::filesystem::path& path, Format format);

/// Reads several containers in parallel (read_each).
/// \returns the result or exception of read_container for each path, in the order of `paths`.
std::vector<std::future<Container>> read_containers(Files& files, std::span<const std::filesystem::path> paths,
                                                    Format format);

/// Detects the format of the file at `path` from its first bytes, its extension and its sibling files. Detects xser and
/// torch's zip and legacy formats; any other file is assumed to be safetensors.
/// \throws Error kBadInput if the file does not exist; kIo.
Format format_of_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
