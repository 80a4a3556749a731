#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/formats/common/container.h"
#include "reshard/formats/common/format.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/names/known_model.h"

/// Finds the weight files of a Hugging Face directory: one file, the files of an index, or a numbered set.
namespace reshard {

/// File names that one program uses for the weights of a model.
struct WholeNames {
  Format format;
  std::string whole;         // name if there is one file
  std::string index;         // name of the index if there are several files
  std::string variant = {};  // variant in both names, such as "fp16"; empty if none
};

/// Returns the file names that `directory` uses, of Transformers or diffusers; std::nullopt if it contains no such
/// files. Prefers safetensors. Considers numbered files only if there is neither a single file nor an index, and a
/// variant only if it is the only one and there are no other weights.
std::optional<WholeNames> hf_names_in(Files& files, const std::filesystem::path& directory);

/// Whether `directory` contains weight files, not only an index, which other systems copy next to their own files.
bool holds_weights(Files& files, const std::filesystem::path& directory, const WholeNames& names_of);

/// Returns the format of the weights in a Hugging Face directory; std::nullopt if it contains none. Prefers
/// safetensors, like Transformers.
std::optional<Format> hf_format(Files& files, const std::filesystem::path& directory);

/// Results of reading a directory, except the tensors.
struct HfIndexReport {
  std::string metadata;               // HfIndex::metadata
  Notes notes;                        // harmless irregularities
  std::vector<std::string> unlisted;  // files with names of weights that the index does not list
  OldNames old_names;                 // Checkpoint::old_names
};

/// Reads the headers of the weight files in `directory`, and validates them against the index: every listed file exists
/// and contains exactly the tensors listed for it. Without an index, numbered files must be a complete set. Harmless
/// irregularities are added to Container::warnings.
/// \param report  Receives the index's metadata and notes; may be null.
/// \param model   See take_out_wrappers.
/// \throws Error kBadInput; kUnsupported.
std::vector<Container> read_hf_checkpoint(Files& files, const std::filesystem::path& directory,
                                          HfIndexReport* report = nullptr, const KnownModel& model = {nullptr});

/// Returns the files in `directory` whose names may be those of whole models, in natural order.
std::vector<std::string> possible_weights_files(Files& files, const std::filesystem::path& directory);

/// Returns the only file in `directory` whose name may be that of a whole model; std::nullopt if there is not exactly
/// one.
std::optional<std::string> only_weights_file(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
