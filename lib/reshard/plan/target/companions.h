#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Whether a file has a name as weights have it: "….safetensors", "….bin" and the like.
bool has_weights_ending(std::string_view file_name);

/// The files beside a checkpoint's weights that belong to the model, in sorted order.
struct Companions {
  std::vector<CopiedFile> files;
  std::vector<std::string> notes;                // folders that were left out, whole sentences
  std::vector<std::filesystem::path> weights{};  // files that stay behind because their names are those of weights
};

/// Everything under `directory` that is neither weights, nor an index of weights, nor hidden, nor about its shards, nor
/// a manifest of its files or a signature of these or of weights, nor what marks the checkpoints of a training run. Left
/// out with a note: folders that are checkpoints of their own, linked folders, folders below `directory` that may not be
/// read, links to nowhere, and pipes, sockets and devices. The folders `left_out` stay behind without one.
/// \throws Error kIo if `directory` itself cannot be read.
Companions companion_files(Files& files, const std::filesystem::path& directory,
                           const std::vector<std::filesystem::path>& left_out = {});

/// The files directly in `directory` whose names are those of weights, sorted; empty if it may not be read.
std::vector<std::filesystem::path> weights_in(Files& files, const std::filesystem::path& directory);

/// Whether a file of this name is a tokenizer, or its vocabulary.
bool is_tokenizer(const std::string& file_name);

/// The files directly in `directory` whose names are those of a tokenizer or its settings, sorted; empty if it may not
/// be read.
std::vector<CopiedFile> tokenizer_files(Files& files, const std::filesystem::path& directory);

/// The files of an output that stand beside its weights.
struct CarriedFiles {
  std::vector<TextFile> text_files;
  std::vector<CopiedFile> copied_files;
};

/// The other files of the directory of a checkpoint, unless the outputs go into it, and its config.json from wherever it
/// is, with the dtype that the draft has for it. Leaves out those that `target` has itself. What to know of them joins the
/// draft's notes.
/// \throws Error kBadInput if a trainer would read files of another save beside new states; kIo.
CarriedFiles carry_files(Files& files, Draft& draft, const Layout& layout, const TargetPlan& target,
                         const std::filesystem::path& output_directory);

}  // namespace reshard
