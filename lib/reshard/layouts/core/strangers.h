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

/// Whether this name belongs to a linear that PEFT has wrapped, as in a model that was saved with its adapter.
bool is_of_peft(std::string_view name);
/// Remedy for models with such names.
inline constexpr const char* kHintForPeft =
    "save the merged model (merge_and_unload), or convert it twice: `drop` \"lora_\" and `rename` \"base_layer\\.=\" "
    "for the base model, `keep` \"lora_\" for the adapter's tensors";

/// Remedy for checkpoints of NxD's mixture-of-experts modules.
inline constexpr const char* kHintForExperts =
    "use the Hugging Face model that the files were converted from; gather a trained model with NxD on the mesh that "
    "saved it, and save it under Hugging Face's names";

}  // namespace reshard
