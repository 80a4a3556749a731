#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/io/files.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Whether a file is named like weights: "….safetensors", "….bin" and the like.
bool has_weights_ending(std::string_view file_name);

/// Files next to a checkpoint's weights that belong to the model, sorted.
struct Companions {
  std::vector<CopiedFile> files;
  Notes notes;                                   // on the folders and entries that were left out
  std::vector<std::filesystem::path> weights{};  // files that were left out because they are named like weights
  std::vector<std::string>
      left{};  // files that are not known to belong to the model; "folder/" if none in a folder does
};

/// Returns the files under `directory` that belong to the model (model_files.h), or all with CompanionFiles::kAll,
/// except: weights and their indices, hidden files, files that describe its shards, manifests, signatures of these or of
/// weights, and markers of a training run's checkpoints. Leaves out, with a note: folders that are checkpoints
/// themselves, linked folders, subfolders that may not be read, broken links, and pipes, sockets and devices. Leaves out
/// the folders `left_out` without a note.
/// \param wanted  kModel or kAll.
/// \throws Error kIo if `directory` itself cannot be read.
Companions companion_files(Files& files, const std::filesystem::path& directory, CompanionFiles wanted,
                           const std::vector<std::filesystem::path>& left_out = {});

/// Returns the files directly in `directory` that are named like weights, sorted; empty if it may not be read.
std::vector<std::filesystem::path> weights_in(Files& files, const std::filesystem::path& directory);

/// Returns the files directly in `directory` that are named like a tokenizer or its settings, sorted; empty if there is
/// no tokenizer or `directory` may not be read.
std::vector<CopiedFile> tokenizer_files(Files& files, const std::filesystem::path& directory);

/// Returns what `copy` lacks of `original` in addition to the model's tensors, as texts: files of the model, such as its
/// tokenizer, weights that were not read, and training state. Files are compared by name.
std::vector<std::string> left_behind(Files& files, const Checkpoint& original, const Checkpoint& copy);

/// The files of an output next to its weights.
struct CarriedFiles {
  std::vector<TextFile> text_files;
  std::vector<CopiedFile> copied_files;
};

/// Returns the companion files of the checkpoint's directory that are `wanted`, unless that is the output directory,
/// and its config.json from any place, with the draft's dtype. Omits files that `target` writes itself. Adds notes to
/// the draft.
/// \throws Error kBadInput if a trainer would read files of another save next to the new optimizer state; kIo.
CarriedFiles carry_files(Files& files, Draft& draft, const Layout& layout, const TargetPlan& target,
                         const std::filesystem::path& output_directory, CompanionFiles wanted);

}  // namespace reshard
