#include "reshard/layouts/core/model_bounds.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBlobsFolder = "blobs";
constexpr const char* kSnapshotsFolder = "snapshots";
constexpr std::string_view kCachedModelPrefix = "models--";

/// Returns the names of the links in a directory; std::nullopt if it cannot be listed, so that any file may be a link.
std::optional<std::set<std::string>> links_in(Files& files, const fs::path& directory) {
  std::set<std::string> links;
  try {
    for (const DirectoryEntry& entry : files.list(directory.empty() ? fs::path(".") : directory))
      if (entry.is_link) links.insert(entry.name);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return std::nullopt;
  }
  return links;
}

}  // namespace

ModelBounds::ModelBounds(Files& files, const std::vector<fs::path>& paths) : files_(files) {
  for (const fs::path& path : paths) {
    if (path.empty()) continue;
    resolved_.push_back(files.resolve(path));
    for (fs::path folder = resolved_.back(); folder.has_relative_path(); folder = folder.parent_path())
      if (folder.parent_path().filename() == kSnapshotsFolder)
        blobs_.push_back(folder.parent_path().parent_path() / kBlobsFolder);
  }
}

bool ModelBounds::hold(const fs::path& path) const {
  const fs::path resolved = files_.resolve(path);
  const fs::path directory = resolved.parent_path();
  const bool is_cached = directory.filename() == kBlobsFolder &&
                         directory.parent_path().filename().string().starts_with(kCachedModelPrefix);
  return is_cached || std::find(blobs_.begin(), blobs_.end(), directory) != blobs_.end() ||
         std::any_of(resolved_.begin(), resolved_.end(),
                     [&](const fs::path& bound) { return lies_inside(resolved, bound); });
}

void validate_no_outside_links(Files& files, const Checkpoint& checkpoint) {
  std::map<fs::path, std::optional<std::set<std::string>>> links;  // keyed by directory
  for (const SourceMap* map : {&checkpoint.map, &checkpoint.states.map})
    for (const SourceFile& file : map->files) {
      const fs::path directory = file.path.parent_path();
      const auto [found, is_new] = links.try_emplace(directory);
      if (is_new) found->second = links_in(files, directory);
      if (found->second && !found->second->contains(file.path.filename().string())) continue;
      if (ModelBounds(files, {checkpoint.path, checkpoint.directory, directory}).hold(file.path)) continue;
      throw Error(ErrorKind::kBadInput,
                  "is a link out of the checkpoint, to " + printable(files.resolve(file.path).string()))
          .in(file.path)
          .hint("replace the link with the file itself, or give the directory that it points to");
    }
}

}  // namespace reshard
