#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/specs/model/config_plan.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {

// Functions that the layouts of training checkpoints share: they find the model's description, map its names, and check
// that its tensors are complete.

/// Returns the directories in which trainers save the config.json and the tokenizer of weights in `folder`, in order of
/// preference: `folder`, folders such as "huggingface" in it, and the same of its parent. They need not exist.
std::vector<std::filesystem::path> model_directories(Files& files, const std::filesystem::path& folder);

/// Returns the first of model_directories that contains config.json; `folder` if none does.
std::filesystem::path trained_directory(Files& files, const std::filesystem::path& folder);

/// Returns the language model that config.json describes. If the checkpoint has no config.json, returns the family of
/// `context`; if config.json is invalid, returns no family, and read_model reports the error.
LanguageModel trained_language_model(Files& files, Checkpoint& checkpoint, const ReadContext& context);

/// Returns what `context` and the checkpoint's config.json say of the model, for take_out_wrappers. Borrows `described`,
/// which receives the family.
KnownModel known_model(Files& files, Checkpoint& checkpoint, const ReadContext& context, LanguageModel& described);

/// Changes the config of a checkpoint of whole tensors, before its model is read, if the vocabulary in the files is larger:
/// tokens were added in training, or it was padded. Adds a note.
/// \param names  Names of the tensors to look at.
void take_vocabulary(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                     const std::vector<WholeTensor>& tensors, const std::unordered_set<std::string_view>& names);

/// A stored tensor of a training checkpoint.
struct TrainedTensor {
  std::string name;
  std::optional<DType> dtype;  // std::nullopt if safetensors does not support it
  Dims shape;

  std::uint64_t bytes() const { return dtype ? num_bytes(*dtype, shape).value_or(0) : 0; }
};

/// Returns the model's names of the entries (find_state_names).
/// \param beside  Names of entries that are not tensors, or that belong to the optimizer and are stored elsewhere.
/// \param use     If it is kRenamed or kLenient, names that cannot be mapped with certainty stay as they are.
/// \param notes   Receives a note about the mapping, if there is one.
/// \throws Error kBadInput, in `where`, as find_state_names.
StateNames names_in_model(const std::vector<TrainedTensor>& entries, const KnownModel& model,
                          const std::vector<std::string>& beside, ConfigUse use, const std::filesystem::path& where,
                          Notes& notes);

/// Returns the packed entries, as `names` declares them.
/// \param where  The checkpoint's path, for errors.
PackedEntries packed_entries(const std::vector<TrainedTensor>& entries, const StateNames& names,
                             const std::filesystem::path& where);

/// "63 tensors of optimizer state (197 kB) are left out"
std::string left_states_text(const TensorCount& states);
/// "4 files of the optimizer (75.6 kB) are left out". Counts BesideModel::files.
/// \param whose  "the optimizer"
std::string left_files_text(const BesideModel& beside, const char* whose);

/// Counts the entries that have no name in the model, and notes that they are left out. Entries beyond the end of
/// `names` have no name.
void leave_out_others(const std::vector<TrainedTensor>& entries, const StateNames& names, BesideModel& beside,
                      Notes& notes);

/// Returns the model's names for a checkpoint whose entries are all tensors, and leaves out entries without a name.
/// Sets `names_of`, `old_names` and `beside_model`.
/// \throws Error kBadInput as names_in_model.
StateNames trained_names(const std::vector<TrainedTensor>& entries, const KnownModel& model, ConfigUse use,
                         Checkpoint& checkpoint);

/// Reads the model of `checkpoint` after find_config and before its map is made. It may stay unknown.
/// \param tensors  The whole tensors, under the names of the map. They have a dtype.
/// \param packed   The packed entries among the tensors.
void read_trained_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                        const std::vector<TrainedTensor>& tensors, const PackedEntries& packed);

/// Completes the map of `checkpoint`, whose model read_trained_model has read: splits packed entries, settles ties and
/// sorts the tensors. All tensors of the model must exist. Extra tensors, such as buffers or another head, are noted.
/// \throws Error kBadInput as validate_trained_against_model, unless `context` is lenient.
void finish_trained_map(Files& files, Checkpoint& checkpoint, const ReadContext& context, const PackedEntries& packed);

}  // namespace reshard
