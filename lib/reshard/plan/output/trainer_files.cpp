#include "reshard/plan/output/trainer_files.h"

#include <algorithm>

#include "reshard/io/files.h"

namespace reshard {

bool is_step_of_run(Files& files, const Checkpoint& checkpoint) {
  if (files.is_same(checkpoint.path, checkpoint.directory)) return false;
  if (is_tag_name(own_name(files, checkpoint.path))) return true;
  return checkpoint.has_ranks() && checkpoint.layout->traits().writes_groups_alone() &&
         !checkpoint.layout->default_output(files, checkpoint.found());
}

std::vector<CopiedFile> trainer_files(Files& files, const Checkpoint& checkpoint) {
  std::vector<std::filesystem::path> directories{checkpoint.path};
  if (!is_step_of_run(files, checkpoint)) directories.push_back(checkpoint.directory);
  std::vector<CopiedFile> found;
  for (const char* name : kTrainerFiles)
    for (const std::filesystem::path& directory : directories) {
      if (!files.is_file(directory / name)) continue;
      found.push_back({directory / name, name, files.size_bytes(directory / name)});
      break;
    }
  return found;
}

bool is_trainer_file(const std::filesystem::path& name) {
  return std::any_of(std::begin(kTrainerFiles), std::end(kTrainerFiles), [&](const char* one) { return name == one; });
}

}  // namespace reshard
