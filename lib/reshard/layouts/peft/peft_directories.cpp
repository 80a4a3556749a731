// Reads PEFT's directories as a checkpoint of adapters.
#include <fmt/format.h>

#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/layouts/peft/sharded_adapter.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// \throws Error kBadInput if the directory contains an adapter's weights, but not its config.
bool is_peft_directory(Files& files, const fs::path& directory) {
  if (!files.is_directory(directory)) return false;
  if (files.exists(directory / kAdapterConfigFile)) return true;
  for (const char* weights : {kAdapterSafetensorsFile, kAdapterPytorchFile})
    if (files.exists(directory / weights))
      throw Error(ErrorKind::kBadInput, fmt::format("contains {}, but no {}", weights, kAdapterConfigFile))
          .in(directory)
          .hint("copy the adapter's config here, or give the directories of the other adapters one by one");
  return false;
}

/// Reads safetensors if files of both formats exist, as PEFT does.
Checkpoint read_peft_adapter(Files& files, const std::string& name, const fs::path& directory) {
  if (has_control(name))
    throw Error(ErrorKind::kBadInput, "contains a control character, which the name of an adapter must not")
        .in(directory);
  Checkpoint checkpoint;
  for (const auto& [file, format] :
       {std::pair(kAdapterSafetensorsFile, Format::kSafetensors), {kAdapterPytorchFile, Format::kPytorch}}) {
    if (!files.exists(directory / file)) continue;
    checkpoint.path = directory / file;
    Container container = read_container(files, checkpoint.path, format);
    if (container.tensors.empty())
      throw Error(ErrorKind::kBadInput, "contains no tensors")
          .in(checkpoint.path)
          .hint("save the adapter again, or fetch the file again");
    for (const std::string& warning : container.warnings)
      checkpoint.notes.push_back(std::string(file) + ": " + warning);
    take_out_wrappers({&container, 1}, {nullptr}, checkpoint.notes);
    checkpoint.map = whole_map({container});
    describe_peft_adapter(checkpoint, name, directory);
    return checkpoint;
  }
  throw Error(ErrorKind::kBadInput, fmt::format("contains an adapter_config.json, but neither {} nor {}",
                                                kAdapterSafetensorsFile, kAdapterPytorchFile))
      .in(directory);
}

/// Returns the name and directory of each adapter in `directory`: its own, named `usual`, and those in its folders
/// without shards. Earlier steps of a training run are left out with a note, unless there are only steps.
std::vector<std::pair<std::string, fs::path>> peft_directories(Files& files, const fs::path& directory,
                                                               const std::string& usual,
                                                               std::vector<std::string>& notes) {
  std::vector<std::pair<std::string, fs::path>> found, steps;
  if (is_peft_directory(files, directory)) found.emplace_back(usual, directory);
  bool has_shards = false;
  if (files.is_directory(directory)) {
    has_shards = own_name(files, directory) == kAdapterShardsFolder;
    for (const DirectoryEntry& entry : files.list(directory)) {
      if (entry.name.starts_with('.') || entry.kind != FileKind::kDirectory) continue;
      const fs::path folder = directory / entry.name;
      const bool is_adapter = is_peft_directory(files, folder);
      const bool is_sharded = (is_adapter || entry.name.starts_with(kAdapterFolderPrefix)) &&
                              files.is_directory(folder / kAdapterShardsFolder);
      has_shards = has_shards || is_sharded || entry.name == kAdapterShardsFolder;
      if (is_adapter && !is_sharded)
        (entry.name.starts_with(kStepPrefix) ? steps : found).emplace_back(entry.name, folder);
    }
  }
  if (found.empty()) found.swap(steps);
  std::vector<std::string> names;
  for (const auto& [name, path] : steps) names.push_back(name);
  if (!names.empty()) notes.push_back(note_on_steps(names));
  if (found.empty() && has_shards)
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

std::string note_on_steps(const std::vector<std::string>& folders) {
  return "left out the adapters of earlier steps: " + list_names(folders, SIZE_MAX);
}

Checkpoint read_peft_adapters(Files& files, const std::vector<fs::path>& directories) {
  std::vector<Checkpoint> adapters;
  std::vector<std::string> notes;
  std::map<std::string, fs::path> seen;
  for (const fs::path& directory : directories) {
    const bool is_first = adapters.empty();
    const std::string own_name = is_first ? kDefaultAdapter : files.resolve(directory).filename().string();
    for (const auto& [name, path] : peft_directories(files, directory, own_name, notes)) {
      const auto [other, is_new] = seen.emplace(name, path);
      if (!is_new)
        throw Error(ErrorKind::kUsage, fmt::format("is the second adapter called \"{}\", after {}", printable(name),
                                                   other->second.string()))
            .in(path)
            .hint("rename its directory");
      adapters.push_back(read_peft_adapter(files, name, path));
    }
  }
  Checkpoint joint = join_adapters(directories.front(), std::move(adapters));
  joint.notes.insert(joint.notes.begin(), notes.begin(), notes.end());
  return joint;
}

}  // namespace reshard
