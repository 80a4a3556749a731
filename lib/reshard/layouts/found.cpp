#include "reshard/layouts/found.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/specs/peft/adapter.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "checkpoint-";  // of folders with earlier steps, not further adapters

/// Returns the checkpoints that `path` may refer to, in layouts for which `wanted` is true. If several layouts match
/// one folder, returns the first match that is not empty.
template <typename Wanted>
std::vector<FoundLayout> find_all(Files& files, const fs::path& path, Wanted&& wanted) {
  std::vector<FoundLayout> all;
  for (const Layout* layout : layouts()) {
    if (!wanted(layout->traits())) continue;
    for (FoundLayout& found : layout->recognise(files, path)) {
      const auto known =
          std::find_if(all.begin(), all.end(), [&](const FoundLayout& other) { return other.path == found.path; });
      if (known == all.end())
        all.push_back(std::move(found));
      else if (known->is_empty && !found.is_empty)
        *known = std::move(found);
    }
  }
  return all;
}

/// Returns the adapters that a reader of `found.kind` reads: none if the path refers to the model whose shards are in it,
/// or, unless shards are wanted, to whole weights.
std::vector<AdapterFolder> adapters_meant(Files& files, const FoundCheckpoint& found) {
  if (found.kind != SourceKind::kShards && found.is_finished()) return {};
  std::vector<AdapterFolder> adapters = find_adapter_folders(files, found.path);
  const bool is_model =
      found.shards && std::none_of(adapters.begin(), adapters.end(), [&](const AdapterFolder& adapter) {
        return adapter.shards.path == found.shards->path;
      });
  if (is_model) adapters.clear();
  return adapters;
}

bool is_adapter_shards(Files& files, const fs::path& folder) {
  return adapter_layout().ranks()->looks_like(files, folder);
}

/// \throws Error kBadInput if the directory contains an adapter's weights, but not its config.
bool is_peft_directory(Files& files, const fs::path& directory) {
  if (!files.is_directory(directory)) return false;
  if (files.exists(directory / kAdapterConfigFile)) return true;
  if (const fs::path weights = peft_file_in(files, directory); !weights.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("contains {}, but no {}", weights.filename().string(), kAdapterConfigFile))
        .in(directory)
        .hint("copy the adapter's config here, or give the directories of the other adapters one by one");
  return false;
}

/// Returns the adapters in `directory`: its own, named `usual`, and those in its folders without shards. Earlier steps of
/// a training run are left out with a note, unless there are only steps.
std::vector<PeftDirectory> peft_directories(Files& files, const fs::path& directory, const std::string& usual,
                                            Notes& notes) {
  std::vector<PeftDirectory> found;
  if (is_peft_directory(files, directory)) found.push_back({usual, directory});
  PeftFolders folders = files.is_directory(directory) ? peft_folders_in(files, directory) : PeftFolders();
  if (found.empty() && folders.adapters.empty()) folders.adapters.swap(folders.steps);
  for (const auto* names : {&folders.adapters, &folders.incomplete})  // an incomplete one is an error when it is read
    for (const std::string& name : *names)
      if (is_peft_directory(files, directory / name)) found.push_back({name, directory / name});
  if (!folders.steps.empty()) notes.left_out(note_on_steps(folders.steps));
  if (found.empty() && (folders.has_shards || !find_adapter_folders(files, directory).empty()))
    throw Error(ErrorKind::kUsage, "contains sharded adapters, and not those that PEFT saved")
        .in(directory)
        .hint("to split them over other ranks, use convert and set `config` to the base model's config.json");
  if (found.empty())
    throw Error(ErrorKind::kBadInput, files.exists(directory)
                                          ? "contains no adapter: neither adapter_config.json nor folders with one"
                                          : "no such directory")
        .in(directory)
        .hint("give a directory in which PEFT saved an adapter");
  return found;
}

}  // namespace

bool FoundCheckpoint::is_checkpoint() const {
  return (kind != SourceKind::kShards && is_finished()) || shards || !adapter_shards.empty();
}

fs::path FoundCheckpoint::adapter_beside_state(Files& files) const {
  if (!shards || shards->is_empty || shards->path == path || !shards->layout->traits().needs_no_mesh()) return {};
  if (!adapter_file.empty()) return adapter_file;
  for (const std::string& folder : peft_folders_in(files, path).adapters)
    if (!peft_file_in(files, path / folder).empty()) return path / folder;
  return {};
}

const Layout* FoundCheckpoint::layout(Files& files) const {
  if (!adapter_shards.empty()) return &adapter_layout();
  if (!whole && !adapter_beside_state(files).empty()) return nullptr;
  if (shards && (!whole || whole->is_empty)) return shards->layout;
  return whole ? whole->layout : nullptr;
}

FoundCheckpoint found_at(Files& files, const fs::path& path, SourceKind kind) {
  FoundCheckpoint found{path, kind};
  if (!files.is_directory(path)) return found;
  found.whole = find_whole(files, path);
  found.adapter_file = peft_file_in(files, path);
  try {
    if (kind != SourceKind::kWhole || !found.whole) found.shards = find_shards(files, path);
  } catch (const Error& error) {
    if (kind != SourceKind::kAny || !found.is_finished() || error.code()) throw;
    found.ambiguity = error;
  }
  found.adapter_shards = adapters_meant(files, found);
  return found;
}

std::optional<FoundLayout> find_shards(Files& files, const fs::path& path) {
  if (!files.is_directory(path)) return std::nullopt;
  auto found = find_all(files, path, [](const LayoutTraits& traits) { return traits.has_ranks(); });
  if (std::any_of(found.begin(), found.end(), [](const FoundLayout& one) { return !one.is_empty; }))
    std::erase_if(found, [](const FoundLayout& one) { return one.is_empty; });
  if (found.size() > 1)
    throw Error(ErrorKind::kBadInput, fmt::format("contains two sharded checkpoints, {} and {}", found[0].path.string(),
                                                  found[1].path.string()))
        .in(path)
        .hint("give the folder of one of them");
  if (!found.empty()) return found.front();
  return std::nullopt;
}

std::optional<FoundLayout> find_whole(Files& files, const fs::path& path) {
  if (!files.is_directory(path)) return std::nullopt;
  const auto found = find_all(files, path, [](const LayoutTraits& traits) { return !traits.has_ranks(); });
  if (found.empty()) return std::nullopt;
  return found.front();
}

std::vector<AdapterFolder> find_adapter_folders(Files& files, const fs::path& path) {
  const Layout& layout = adapter_layout();
  std::vector<AdapterFolder> found;
  const auto add = [&](const fs::path& parent, const fs::path& shards) {
    if (!is_adapter_shards(files, shards)) return;
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

fs::path peft_file_in(Files& files, const fs::path& directory) {
  for (const FormatRow& weights : kPeftWeights)
    if (files.exists(directory / weights.name)) return directory / weights.name;
  return {};
}

PeftFolders peft_folders_in(Files& files, const fs::path& directory) {
  PeftFolders folders;
  for (const DirectoryEntry& entry : files.list(directory)) {
    const fs::path folder = directory / entry.name;
    const bool is_step = entry.name.starts_with(kStepPrefix);  // which may be incomplete
    if (entry.kind != FileKind::kDirectory || entry.name.starts_with('.')) continue;
    const bool has_weights = !peft_file_in(files, folder).empty();
    if (!has_weights && (is_step || !files.exists(folder / kAdapterConfigFile))) continue;
    if (is_adapter_shards(files, folder / kAdapterShardsFolder))
      folders.has_shards = true;
    else
      (is_step ? folders.steps : has_weights ? folders.adapters : folders.incomplete).push_back(entry.name);
  }
  return folders;
}

std::string note_on_steps(const std::vector<std::string>& folders) {
  return "left out the adapters of earlier steps: " + list_names(folders, SIZE_MAX);
}

std::vector<PeftDirectory> find_peft_adapters(Files& files, const std::vector<fs::path>& directories, Notes& notes) {
  std::vector<PeftDirectory> all;
  for (const fs::path& directory : directories) {
    const std::string usual = all.empty() ? kDefaultAdapter : files.resolve(directory).filename().string();
    for (PeftDirectory& found : peft_directories(files, directory, usual, notes)) {
      const auto same =
          std::find_if(all.begin(), all.end(), [&](const PeftDirectory& other) { return other.name == found.name; });
      if (same != all.end())
        throw Error(ErrorKind::kUsage, fmt::format("is the second adapter called \"{}\", after {}",
                                                   printable(found.name), same->path.string()))
            .in(found.path)
            .hint("rename its directory");
      if (has_control(found.name))
        throw Error(ErrorKind::kBadInput, "contains a control character, which the name of an adapter must not")
            .in(found.path);
      all.push_back(std::move(found));
    }
  }
  return all;
}

}  // namespace reshard
