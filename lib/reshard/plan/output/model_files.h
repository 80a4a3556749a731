// The files next to a model's weights that belong to the model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// Whether a file of this name is a tokenizer or its vocabulary.
bool is_tokenizer(const std::string& file_name);

/// Whether a file of this name contains settings that are used together with a tokenizer: its special tokens, a chat
/// template, the processor, the defaults of generation.
bool is_tokenizer_setting(const std::string& file_name);

/// Whether it is one of these that depends on the model alone: a processor, the defaults of generation.
bool is_processor(const std::string& file_name);

/// Whether a file belongs to the model, by its path relative to the model's directory. Does not cover model_code.
bool belongs_to_model(const std::string& relative);

/// Python files, as sorted paths relative to the model's directory.
struct ModelCode {
  std::vector<std::filesystem::path> files;    // existing ones
  std::vector<std::filesystem::path> missing;  // files that a config names, and that do not exist or cannot be read
};

/// Returns the Python files that the configs in `directory` name (auto_map, custom_pipelines, the types in
/// modules.json), and those that these import relatively. Ignores code of other repositories.
/// \throws Error kIo on a disk fault.
ModelCode model_code(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
