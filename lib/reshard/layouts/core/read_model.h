#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/unpack.h"
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
LanguageModel trained_language_model(Files& files, Checkpoint& checkpoint, const ReadContext& context);

/// A tensor of a trainer's checkpoint.
struct StateEntry {
  std::string name;
  std::optional<DType> dtype;  // std::nullopt for one that safetensors does not have
  Dims shape;

  std::uint64_t bytes() const { return dtype ? num_bytes(*dtype, shape).value_or(0) : 0; }
};

/// What `model` calls the entries (find_state_names). What to know of that joins `notes`.
/// \param beside  names of entries that are no tensors, or are the optimizer's and lie elsewhere.
/// \throws Error kBadInput, in `where`, if two entries would have one name.
StateNames names_in_model(const std::vector<StateEntry>& entries, const KnownModel& model,
                          const std::vector<std::string>& beside, const std::filesystem::path& where,
                          std::vector<std::string>& notes);

/// Those of the entries that are packed, by their `names`. `where` is for errors.
PackedEntries packed_entries(const std::vector<StateEntry>& entries, const StateNames& names,
                             const std::filesystem::path& where);

/// Counts the entries that have no name in the model, and notes that they are left out. Those behind the ones that
/// `names` is about have none.
void leave_out_others(const std::vector<StateEntry>& entries, const StateNames& names, BesideModel& beside,
                      std::vector<std::string>& notes);

/// Finds the names and leaves out the others, for a checkpoint whose entries are all tensors. Sets its `names_of` and
/// `beside_model`.
/// \throws Error kBadInput as names_in_model.
StateNames trained_names(const std::vector<StateEntry>& entries, const LanguageModel& model, Checkpoint& checkpoint);

/// Reads the model of `checkpoint`, whose config.json is found, makes its map and takes packed entries apart. All of the
/// model's tensors have to be there. A trainer may have more of them, such as buffers or a head of its own, which is
/// noted.
/// \param tensors  the model's, whole, by the names that `make_map` gives them.
/// \param packed   those of them that are packed.
/// \param make_map  of a model, if that is known.
/// \throws Error kBadInput as validate_trained_against_model, unless `context` is lenient.
void read_trained_model(Files& files, Checkpoint& checkpoint, const ReadContext& context, const Container& tensors,
                        const PackedEntries& packed,
                        const std::function<SourceMap(const std::optional<Model>& model)>& make_map);

}  // namespace reshard
