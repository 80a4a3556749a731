#include "reshard/layouts/master_weights.h"

#include <algorithm>
#include <set>

#include "reshard/base/error.h"
#include "reshard/formats/state_dict.h"
#include "reshard/formats/torch_file.h"
#include "reshard/formats/xser.h"
#include "reshard/io/local_storage.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMasterWeights = "sharded_master_weights";

/// Whether any tensor that `file` may refer to is there.
bool has_tensor_files(const fs::path& file) {
  std::error_code missing;
  const fs::directory_iterator entries(xser_tensors_folder(file), missing);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return is_xser_tensor_name(entry.path().filename().string());
  });
}

/// The optimizer's files, in the order of their names.
std::set<fs::path> optimizer_files(const fs::path& folder) {
  std::set<fs::path> files;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing))
    if (entry.path().extension() == ".pt" && rank_of_name(entry.path().stem().string())) files.insert(entry.path());
  return files;
}

/// Whether `is_so` of the pickle in `file`; false where it cannot be read, which is said elsewhere.
template <typename IsSo>
bool holds(const fs::path& file, IsSo&& is_so) {
  try {
    const TorchFile torch = read_torch_file(file);
    return is_so(torch.pickle());
  } catch (const Error&) {
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
    return pickle.text(entry.first) == kMasterWeights && !pickle.pairs(entry.second).empty();
  });
}

}  // namespace

void refuse_weights_in_optimizer(const fs::path& folder, std::span<const RankFile> ranks) {
  if (ranks.empty()) return;
  const std::set<fs::path> states = optimizer_files(folder);
  if (states.empty()) return;
  if (std::any_of(ranks.begin(), ranks.end(), [](const RankFile& rank) { return has_tensor_files(rank.path); })) return;
  // A checkpoint is all xser or not at all. Empty folders may be lost in a copy.
  const bool xser = is_xser(ranks.front().path) || path_exists(xser_info_path(ranks.front().path)) ||
                    std::any_of(states.begin(), states.end(), [](const fs::path& file) { return is_xser(file); });
  if (!xser) return;
  if (!holds(ranks.front().path, is_of_references)) return;
  if (std::none_of(states.begin(), states.end(), [](const fs::path& file) { return holds(file, has_master_weights); }))
    return;
  throw Error(ErrorKind::kUnsupported,
              "holds no weights: this checkpoint has them in optim/ alone, as the optimizer's fp32 master weights "
              "(avoid_saving_lower_precision_weights). Reading them comes with a later version")
      .in(ranks.front().path.parent_path())
      .hint("load the checkpoint in the training code and save it again without avoid_saving_lower_precision_weights");
}

}  // namespace reshard
