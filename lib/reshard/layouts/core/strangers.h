#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/io/files.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Detects a checkpoint of an unsupported system by names that only this system uses.
/// \param names  Names of all tensors, or of one rank's tensors.
/// \param model  Names of its parameters are ignored; null if the model is unknown.
/// \param explained  Further names to ignore.
/// \returns an Error kUnsupported that reports a tensor, the system and a remedy, without a path; std::nullopt if no
/// name identifies such a system.
std::optional<Error> stranger_among(const std::vector<std::string_view>& names, const Model* model,
                                    std::unordered_set<std::string_view> explained = {});

/// Detects a checkpoint of an unsupported system by the name of a file, or by the file names in a directory and its
/// folders. The Error contains a path. Lists each folder once.
std::optional<Error> stranger_in(Files& files, const std::filesystem::path& path);

/// Detects the tensors of an adapter that is not merged into its model.
/// \param model  As for stranger_among: some models have adapters of their own.
/// \returns an Error kUnsupported that reports a tensor and a remedy, without a path; std::nullopt if no name is of
/// this kind.
std::optional<Error> unmerged_adapter(const std::vector<std::string_view>& names, const Model* model);

/// Remedy for checkpoints of NxD's mixture-of-experts modules.
inline constexpr const char* kHintForExperts =
    "use the Hugging Face model that the files were converted from; gather a trained model with NxD on the mesh that "
    "saved it, and save it under Hugging Face's names";

}  // namespace reshard
