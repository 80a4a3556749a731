#pragma once

#include <filesystem>
#include <vector>

#include "reshard/plan/job/job.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

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
