#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {

// What layouts of files that a trainer writes share: where the model is described, what it calls its tensors, and what
// of them there must be.

/// The directory of config.json for weights in `folder`: that itself or the one above, or "huggingface" in one of them,
/// as trainers put it there; else `folder`.
std::filesystem::path trained_directory(Files& files, const std::filesystem::path& folder);

/// Returns the language model of the config.json that is found; without a family if there is none, or if config.json
/// makes no sense, which read_model reports.
LanguageModel trained_language_model(Files& files, const Checkpoint& checkpoint, const ReadContext& context);

/// A tensor of a trainer's checkpoint.
struct StateEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::optional<DType> dtype{};  // nothing for one that safetensors does not have
};

/// What `model` calls the entries (find_state_names). What to know of that joins `notes`.
/// \param beside  names of entries that are no tensors, or are the optimizer's and lie elsewhere.
/// \throws Error kBadInput, in `where`, if two entries would have one name.
StateNames names_in_model(const std::vector<StateEntry>& entries, const KnownModel& model,
                          const std::vector<std::string>& beside, const std::filesystem::path& where,
                          std::vector<std::string>& notes);

/// Counts the entries that have no name in the model, and notes that they are left out. Those behind the ones that
/// `names` is about have none.
void leave_out_others(const std::vector<StateEntry>& entries, const StateNames& names, BesideModel& beside,
                      std::vector<std::string>& notes);

/// Both, for a layout that no other program's names are read from.
/// \throws Error kUnsupported, in `where`, for such names.
std::vector<std::string> own_names_in_model(const std::vector<StateEntry>& entries, const KnownModel& model,
                                            const std::filesystem::path& where, BesideModel& beside,
                                            std::vector<std::string>& notes);

/// Reads the model of `checkpoint`, whose config.json is found, and makes its map of it. All of the model's tensors
/// have to be there. A trainer may have more of them, such as buffers or a head of its own, which is noted.
/// \param tensors  the model's, whole.
/// \param make_map  of a model, if that is known.
/// \throws Error kBadInput as validate_trained_against_model, unless `context` is lenient.
void read_trained_model(Files& files, Checkpoint& checkpoint, const ReadContext& context, const Container& tensors,
                        const std::function<SourceMap(const std::optional<Model>& model)>& make_map);

}  // namespace reshard
