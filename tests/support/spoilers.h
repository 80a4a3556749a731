#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "support/files.h"

/// Damage to files that were valid. Times of modification stay, which some layouts compare.
namespace reshard::test {

void swap_files(const std::filesystem::path& a, const std::filesystem::path& b);

/// Sets fields of a JSON file; null removes one.
void merge_json(const std::filesystem::path& path, const nlohmann::json& fields);

/// Inverts the lowest bit of a byte.
void flip_byte(const std::filesystem::path& path, std::uint64_t offset_bytes);

/// Removes bytes from the end.
void shorten(const std::filesystem::path& path, std::uint64_t bytes);

/// Rewrites a safetensors file with other tensors. Metadata such as the rank's record is lost.
void change_tensors(const std::filesystem::path& path, const std::function<void(TensorMap&)>& change);

}  // namespace reshard::test
