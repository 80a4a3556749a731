#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// The reference reader's limit on the header (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// huggingface_hub's remote parser reads no more (constants.py, SAFETENSORS_MAX_HEADER_LENGTH): what is written stays
/// below.
inline constexpr std::uint64_t kMaxWrittenHeaderBytes = 25'000'000;

/// Reads the header of a safetensors file and validates the file by every rule of the format: sizes, offsets without
/// hole or overlap, exact length, known dtypes, unique names. Reads nothing of the tensors.
/// \param path  What errors and the container call it.
/// \throws Error kBadInput, naming the file and where possible the tensor; kIo.
Container read_safetensors(const Source& source, const std::filesystem::path& path);

/// The same for a header in memory, of a file of `file_bytes` in all. `header` is the JSON without its length field.
Container parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                   const std::filesystem::path& path);

/// Lays out a safetensors file as the reference writer does: dtypes in descending order of the enum, then names in
/// ascending byte order, no gaps, the header padded to 8 bytes, `{"format": "pt"}` and `metadata` as its metadata. The
/// `offset_bytes` and `size_bytes` of `tensors` are ignored.
/// \throws Error kUnsupported if the header would exceed kMaxWrittenHeaderBytes, and for a name that is too long.
ContainerPlan plan_safetensors(std::vector<TensorEntry> tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace reshard
