#include "reshard/layouts/trained_model.h"

#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/misfits.h"
#include "reshard/layouts/rank_folder.h"
#include "reshard/layouts/state_names.h"
#include "reshard/specs/language_model.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFolder = "huggingface";

}  // namespace

fs::path trained_directory(Files& files, const fs::path& folder) {
  const fs::path above = directory_above(files, folder);
  for (const fs::path& directory : {folder, folder / kConfigFolder, above, above / kConfigFolder})
    if (files.exists(directory / kConfigFile)) return directory;
  return folder;
}

FamilySpec trained_family(Files& files, const Checkpoint& checkpoint, const ReadContext& context) {
  if (checkpoint.config.empty()) return context.family;
  try {
    return find_language_model(read_model_config_file(files, checkpoint.config), context.family).family;
  } catch (const Error&) {
    return nullptr;
  }
}

std::vector<std::string> names_in_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                                        const std::vector<std::string>& entries, const fs::path& where) {
  try {
    const FamilySpec family = trained_family(files, checkpoint, context);
    StateNames found = find_state_names(entries, family.get());
    if (!found.program.empty())
      throw Error(ErrorKind::kUnsupported, "its tensors have the names of " + found.program +
                                               ", which are read from torch.distributed.checkpoint alone");
    if (const std::string note = state_names_note(found); !note.empty()) checkpoint.notes.push_back(note);
    std::vector<std::string> others;
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (found.names[i].empty()) others.push_back(entries[i]);
    if (!others.empty())
      checkpoint.notes.push_back(fmt::format("{} tensor{} beside the model {} left out: {}", others.size(),
                                             others.size() == 1 ? "" : "s", others.size() == 1 ? "is" : "are",
                                             list_names(others)));
    return std::move(found.names);
  } catch (Error& error) {
    if (error.path().empty()) error.in(where);
    throw;
  }
}

void validate_trained(Checkpoint& checkpoint, ConfigUse use) {
  if (use == ConfigUse::kLenient || !checkpoint.model) return;
  const Misfits misfits = find_misfits(checkpoint.map, *checkpoint.model);
  if (!misfits.missing.empty() || !misfits.shapes.empty())
    validate_against_model(checkpoint.map, *checkpoint.model, checkpoint.path, kSameFamily);
  if (misfits.unlisted.empty()) return;
  std::vector<std::string> names;
  for (const LogicalTensor* tensor : misfits.unlisted) names.push_back(tensor->name);
  checkpoint.notes.push_back("config.json does not explain these tensors: " + list_names(names));
}

}  // namespace reshard
