#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/io/files.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Recognises a checkpoint that is not read by names that only the system that wrote it uses.
/// \param names  of all its tensors, or of one rank's.
/// \param model  whose own names count for nothing; null if it is unknown.
/// \returns an Error kUnsupported that names a tensor, the system and what to do, without a path; std::nullopt if no
/// name gives the system away.
std::optional<Error> stranger_among(const std::vector<std::string_view>& names, const Model* model);

/// The same by the files of `directory` and of its folders; the Error has a path. Lists each folder once.
std::optional<Error> stranger_in(Files& files, const std::filesystem::path& directory);

/// Whether a tensor of this name is a linear's that PEFT has wrapped, as in models that were saved with their adapters.
bool is_of_peft(std::string_view name);
/// What to do with those.
inline constexpr const char* kHintForPeft =
    "save the model merged (merge_and_unload), or convert it twice: `drop` \"lora_\" and `rename` \"base_layer\\.=\" "
    "make "
    "the base model, `keep` \"lora_\" the tensors of the adapter";

/// What to do with checkpoints of NxD's mixtures of experts.
inline constexpr const char* kHintForExperts =
    "take the Hugging Face model that the files were made from; gather a trained one with NxD in the mesh that saved "
    "it, "
    "and save it under Hugging Face's names";

}  // namespace reshard
