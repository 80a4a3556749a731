#include "reshard/layouts/ranks/master_weights.h"

#include <algorithm>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/layouts/states/optimizer_keys.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Lists a folder; empty if it does not exist or cannot be listed.
std::vector<DirectoryEntry> list_if_any(Files& files, const fs::path& folder) {
  try {
    return files.list(folder);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return {};
  }
}

/// Whether any tensor file that `file` may refer to exists.
bool has_tensor_files(Files& files, const fs::path& file) {
  const std::vector<DirectoryEntry> entries = list_if_any(files, xser_tensors_folder(file));
  return std::any_of(entries.begin(), entries.end(),
                     [](const DirectoryEntry& entry) { return is_xser_tensor_name(entry.name); });
}

/// Returns the optimizer's files, sorted by name.
std::vector<fs::path> optimizer_files(Files& files, const fs::path& folder) {
  std::vector<fs::path> states;
  for (const DirectoryEntry& entry : list_if_any(files, folder))
    if (kRankFileName.matches(entry.name)) states.push_back(folder / entry.name);
  return states;
}

/// Whether `is_so` is true of the pickle in `file`. False if the file has no valid pickle, which reading the checkpoint
/// reports.
template <typename IsSo>
bool holds(Files& files, const fs::path& file, IsSo&& is_so) {
  try {
    const TorchFile torch = read_torch_file(*open_weights(files, file), file);
    return is_so(torch.pickle());
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return false;
  }
}

/// Whether its tensors are in other files.
bool is_of_references(const Pickle& pickle) {
  for (PickleRef node = 0; node < pickle.num_nodes(); ++node)
    if (is_xser_reference(pickle, node)) return true;
  return false;
}

bool has_master_weights(const Pickle& pickle) {
  const auto entries = pickle.pairs(pickle.root());
  return std::any_of(entries.begin(), entries.end(), [&](const PicklePair& entry) {
    return pickle.text(entry.first) == kMastersKey && !pickle.pairs(entry.second).empty();
  });
}

}  // namespace

bool has_weights_in_optimizer_alone(Files& files, const fs::path& folder, std::span<const RankFile> ranks) {
  if (ranks.empty()) return false;
  const std::vector<fs::path> states = optimizer_files(files, folder);
  if (states.empty()) return false;
  if (std::any_of(ranks.begin(), ranks.end(), [&](const RankFile& rank) { return has_tensor_files(files, rank.path); }))
    return false;
  // Either all files of a checkpoint are xser or none. A copy may have lost empty folders.
  const bool xser =
      is_xser(files, ranks.front().path) || files.exists(xser_info_path(ranks.front().path)) ||
      std::any_of(states.begin(), states.end(), [&](const fs::path& file) { return is_xser(files, file); });
  if (!xser) return false;
  if (!holds(files, ranks.front().path, is_of_references)) return false;
  return std::any_of(states.begin(), states.end(),
                     [&](const fs::path& file) { return holds(files, file, has_master_weights); });
}

bool may_lack_optimizer(Files& files, const fs::path& folder, const RankFile& rank) {
  return optimizer_files(files, folder).empty() && !has_tensor_files(files, rank.path) &&
         holds(files, rank.path, is_of_references);
}

}  // namespace reshard
