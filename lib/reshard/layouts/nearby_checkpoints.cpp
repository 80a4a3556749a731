#include "reshard/layouts/nearby_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/peft/adapter_folders.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 64;  // that are looked into: it may be a home directory

bool holds_checkpoint(Files& files, const fs::path& folder) {
  try {
    return find_shards(files, folder) || find_whole(files, folder);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kBadInput && !error.code();  // it holds two of them
  }
}

/// The snapshots of `directory` if it is a model in the cache of the Hugging Face Hub (models--ORG--NAME): that of
/// refs/main, or else all of them.
std::vector<std::string> hub_snapshots(Files& files, const fs::path& directory) {
  constexpr std::uint64_t kMaxRefBytes = 256;
  const fs::path snapshots = directory / "snapshots", ref = directory / "refs/main";
  if (!files.is_directory(snapshots)) return {};
  std::string main = files.is_file(ref) ? read_text_file(files, ref, kMaxRefBytes) : std::string();
  main.erase(main.find_last_not_of("\r\n") + 1);
  std::vector<std::string> all;
  for (const DirectoryEntry& entry : files.list(snapshots)) {
    if (!holds_checkpoint(files, snapshots / entry.name)) continue;
    all.push_back((snapshots / entry.name).string());
    if (entry.name == main) return {all.back()};
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

std::string hint_for_contents(Files& files, const fs::path& directory) {
  if (const std::vector<std::string> snapshots = hub_snapshots(files, directory); !snapshots.empty())
    return fmt::format("it is a model in the cache of the Hugging Face Hub: give {} {}",
                       snapshots.size() == 1 ? "its snapshot" : "one of its snapshots,", list_names(snapshots));
  std::vector<std::string> folders;
  std::size_t seen = 0;
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kDirectory && !entry.name.starts_with('.') && ++seen <= kMostFolders &&
        holds_checkpoint(files, directory / entry.name))
      folders.push_back(printable(entry.name) + "/");
  std::sort(folders.begin(), folders.end(), natural_less);
  if (folders.size() == 1) return fmt::format("{} in it contains a checkpoint: give that folder", folders.front());
  if (!folders.empty())
    return fmt::format("folders in it contain checkpoints, give one of them: {}", list_names(folders));
  const auto weights = only_weights_file(files, directory);
  if (weights && (*weights == kAdapterSafetensorsFile || *weights == kAdapterPytorchFile))
    return "it contains a LoRA adapter: to shard it, give the directory of its model, and this one as `adapter`";
  if (weights) return fmt::format("{} in it is a file of weights: give that file", printable(*weights));
  return {};
}

}  // namespace reshard
