#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// Header limit of the reference reader (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Limit for written headers: huggingface_hub's remote parser reads no more (constants.py,
/// SAFETENSORS_MAX_HEADER_LENGTH).
inline constexpr std::uint64_t kMaxWrittenHeaderBytes = 25'000'000;

/// Reads the header of a safetensors file and validates the file by every rule of the format: sizes, offsets without
/// holes or overlap, exact length, known dtypes, unique names. Reads no tensor data.
/// \param path  path for errors and for the container.
/// \throws Error kBadInput, naming the file and if possible the tensor; kIo.
Container read_safetensors(const Source& source, const std::filesystem::path& path);

/// Same as read_safetensors for a header in memory; the file has `file_bytes`. `header` is the JSON without its length.
Container parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                   const std::filesystem::path& path);

/// Plans a safetensors file like the reference writer: dtypes in descending order of the enum, then names in ascending
/// byte order, no gaps, the header padded to 8 bytes, and `{"format": "pt"}` and `metadata` as its metadata. Ignores
/// `offset_bytes` and `size_bytes` of `tensors`.
/// \throws Error kUnsupported if the header would exceed kMaxWrittenHeaderBytes, or a name is too long.
ContainerPlan plan_safetensors(std::vector<TensorEntry> tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace reshard
