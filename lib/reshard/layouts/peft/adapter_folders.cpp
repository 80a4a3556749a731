#include "reshard/layouts/peft/adapter_folders.h"

#include <algorithm>
#include <optional>

#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {

namespace fs = std::filesystem;

std::vector<AdapterFolder> find_adapter_folders(Files& files, const fs::path& path) {
  const Layout& layout = adapter_layout();
  std::vector<AdapterFolder> found;
  const auto add = [&](const fs::path& parent, const fs::path& shards) {
    if (!layout.ranks()->looks_like(files, shards)) return;
    std::string name = directory_above(files, shards).filename().string();
    const bool named = name.starts_with(kAdapterFolderPrefix);
    found.push_back({named ? name.substr(kAdapterFolderPrefix.size()) : "", {&layout, shards, parent}});
  };
  if (!files.is_directory(path)) return found;
  if (own_name(files, path) == kAdapterShardsFolder) add(directory_above(files, path), path);
  if (found.empty()) add(path, path / kAdapterShardsFolder);
  if (!found.empty()) {
    found.front().alone = true;
    return found;
  }
  std::optional<Error> denied;
  for (const DirectoryEntry& entry : files.list(path)) {
    if (!entry.name.starts_with(kAdapterFolderPrefix)) continue;
    try {
      add(path / entry.name, path / entry.name / kAdapterShardsFolder);
    } catch (const Error& error) {
      if (error.code() != std::errc::permission_denied) throw;
      denied = error;
    }
  }
  if (denied && !found.empty()) throw *denied;  // otherwise one of several adapters would silently be left out
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

std::vector<AdapterFolder> adapters_meant(Files& files, const fs::path& path) {
  std::vector<AdapterFolder> adapters = find_adapter_folders(files, path);
  if (adapters.empty()) return adapters;
  const auto shards = find_shards(files, path);
  const bool model = shards && std::none_of(adapters.begin(), adapters.end(), [&](const AdapterFolder& adapter) {
                       return adapter.shards.path == shards->path;
                     });
  if (model) adapters.clear();
  return adapters;
}

std::vector<AdapterFolder> adapters_to_read(Files& files, const fs::path& path) {
  if (find_whole(files, path)) return {};
  for (const char* name : {kAdapterSafetensorsFile, kAdapterPytorchFile})
    if (files.exists(path / name)) return {};
  return adapters_meant(files, path);
}

}  // namespace reshard
