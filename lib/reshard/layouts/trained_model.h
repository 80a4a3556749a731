#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "reshard/layouts/checkpoint.h"
#include "reshard/layouts/layout.h"
#include "reshard/specs/family.h"

namespace reshard {

// What layouts of files that a trainer writes share: where the model is described, and what it calls its tensors.

/// The directory of config.json for weights in `folder`: that itself or the one above, or "huggingface" in one of them,
/// as trainers put it there; else `folder`.
std::filesystem::path trained_directory(Files& files, const std::filesystem::path& folder);

/// The family of the model whose config.json is found, or null: what is wrong with it read_model says.
FamilySpec trained_family(Files& files, const Checkpoint& checkpoint, const ReadContext& context);

/// The names that the model of `checkpoint`, whose config.json is found, gives to `entries` (find_state_names); empty
/// for those that are not the model's. What to know of them joins `checkpoint.notes`.
/// \throws Error kBadInput, in `where`, if two entries would have one name; kUnsupported for another program's names.
std::vector<std::string> names_in_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                                        const std::vector<std::string>& entries, const std::filesystem::path& where);

/// Holds what was read against the model, if that is known: all of it is there. A trainer may have more, such as
/// buffers or a head of its own, which is noted.
/// \throws Error kBadInput as validate_against_model.
void validate_trained(Checkpoint& checkpoint, ConfigUse use);

}  // namespace reshard
