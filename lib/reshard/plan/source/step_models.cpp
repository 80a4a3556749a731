#include "reshard/plan/source/step_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr int kLevelsSearched = 3;                // policy/weights/model
constexpr std::size_t kMostFoldersSearched = 64;  // limit of folders to search on each level
constexpr const char* kOptimizerPrefix = "optim";
constexpr const char* kAccelerateFile = "pytorch_model_fsdp.bin";  // of FULL_STATE_DICT

/// Appends the models in `step / relative`.
void find_models(Files& files, const fs::path& step, const fs::path& relative, int levels,
                 std::vector<StepModel>& models) {
  std::size_t seen = 0;
  for (const DirectoryEntry& entry : files.list(step / relative)) {
    if (entry.kind == FileKind::kFile && entry.name == kAccelerateFile) models.push_back({relative / entry.name, true});
    if (entry.kind != FileKind::kDirectory || entry.is_link || entry.name.starts_with('.') ||
        entry.name.starts_with(kOptimizerPrefix) || ++seen > kMostFoldersSearched)
      continue;
    const fs::path folder = relative / entry.name;
    try {
      const auto shards = find_shards(files, step / folder);
      const bool has_shards = shards && !shards->is_empty;
      if (has_shards || holds_hugging_face(files, step / folder))
        models.push_back({folder, has_shards});
      else if (levels > 1)
        find_models(files, step, folder, levels - 1, models);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kBadInput && !error.code())
        models.push_back({folder, true});  // contains two checkpoints: the user gets the error if this one is read
      else if (!is_denied(error))
        throw;
    }
  }
}

}  // namespace

bool holds_hugging_face(Files& files, const fs::path& directory) {
  return find_whole(files, directory) || !peft_file_in(files, directory).empty();
}

std::vector<StepModel> models_in_step(Files& files, const fs::path& step) {
  std::vector<StepModel> models;
  find_models(files, step, {}, kLevelsSearched, models);
  std::sort(models.begin(), models.end(),
            [](const StepModel& a, const StepModel& b) { return natural_less(a.path.string(), b.path.string()); });
  return models;
}

fs::path model_in_step(Files& files, const fs::path& step, SourceKind kind) {
  const std::vector<StepModel> models = models_in_step(files, step);
  if (models.empty()) return step;
  std::vector<std::string> names;
  for (const StepModel& model : models) names.push_back(printable(model.path.string()));
  if (models.size() > 1)
    throw Error(ErrorKind::kBadInput, "contains several models: " + list_names(names))
        .in(step)
        .hint("give the path of one of them, such as " + (step / models.front().path).string());
  const fs::path path = step / models.front().path;
  if (kind == SourceKind::kShards && !models.front().is_sharded)
    throw Error(ErrorKind::kBadInput, fmt::format("contains whole weights, in {}, and no shards", names.front()))
        .in(step)
        .hint("nothing needs to be consolidated: to convert them, give " + path.string() + " to `convert`");
  return path;
}

}  // namespace reshard
