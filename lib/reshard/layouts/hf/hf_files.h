#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/format.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"

/// Which files of a Hugging Face directory make up its model: one file, those of an index, or a numbered set.
namespace reshard {

/// The names that one program gives the files of a model.
struct WholeNames {
  Format format;
  std::string whole;         // name of a model in one file
  std::string index;         // name of its index, if it is in several
  std::string variant = {};  // "fp16", which is part of both names; empty for none
};

/// The names of the files in `directory`, by Transformers or diffusers, safetensors first; std::nullopt if there are
/// none. Numbered files count only if there is neither a whole file nor an index, and a variant of the model only if it
/// is the only one and there is nothing else.
std::optional<WholeNames> hf_names_in(Files& files, const std::filesystem::path& directory);

/// Whether there is any file of weights, and not an index alone, as other systems copy it beside files of their own.
bool holds_weights(Files& files, const std::filesystem::path& directory, const WholeNames& names_of);

/// The format of the weights in a Hugging Face directory: safetensors where both are there, as transformers has it;
/// nothing if neither is.
std::optional<Format> hf_format(Files& files, const std::filesystem::path& directory);

/// Contents of an index other than the places of tensors; notes if it is missing.
struct HfIndexReport {
  std::string metadata;               // HfIndex::metadata
  std::vector<std::string> notes;     // what is odd but harmless, whole sentences
  std::vector<std::string> unlisted;  // files with names of weights that it does not list
};

/// The files of the Hugging Face checkpoint in `directory`, each read and validated, and together held against the
/// index: every named file exists and contains the tensors listed for it, and no others. Without an index, numbered
/// files must be a complete set. `warnings` get what is odd but harmless.
/// \param report  If given, is filled from the index and with a note if numbered files have none.
/// \throws Error kBadInput; kUnsupported.
std::vector<Container> read_hf_checkpoint(Files& files, const std::filesystem::path& directory,
                                          HfIndexReport* report = nullptr);

/// The only file in `directory` that may contain all of a model, by its name; std::nullopt unless it is exactly one.
std::optional<std::string> only_weights_file(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
