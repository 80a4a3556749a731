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

/// Whether a file belongs to the model, by its path relative to the model's directory. Does not cover model_code.
bool belongs_to_model(const std::string& relative);

/// Returns the Python files that the configs in `directory` name (auto_map, custom_pipelines, the types in
/// modules.json), and those that these import relatively, as relative paths of existing files, sorted. Ignores code of
/// other repositories and files that cannot be read.
/// \throws Error kIo on a disk fault.
std::vector<std::filesystem::path> model_code(Files& files, const std::filesystem::path& directory);

}  // namespace reshard
