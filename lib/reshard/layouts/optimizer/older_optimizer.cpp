#include "reshard/layouts/optimizer/older_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "reshard/base/error.h"
#include "reshard/layouts/optimizer/optimizer_file.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kOlderName("optim.dp_rank_{dp:2}.tp_rank_{tp:2}", kMaxParallelDegree - 1);
constexpr NumberedName kOlderWeightsName("tp_rank_{tp:2}_pp_rank_{pp:2}_dp_rank_{dp:2}", kMaxParallelDegree - 1);

/// Returns a rank's file of weights that torch saved; std::nullopt if `entry` has none.
std::optional<fs::path> weights_file(Files& files, const fs::path& folder, const DirectoryEntry& entry) {
  const fs::path path = folder / entry.name;
  if (entry.kind == FileKind::kFile) return path;
  if (files.exists(path / kRankCheckpointFile)) return path / kRankCheckpointFile;
  return std::nullopt;
}

}  // namespace

bool is_older_optimizer_name(std::string_view name) {
  return kOlderName.matches(name);
}

std::vector<OptimizerFileName> list_older_optimizer(Files& files, const fs::path& folder) {
  std::vector<OptimizerFileName> beside, weights;
  std::uint32_t pp = 1;
  for (const DirectoryEntry& entry : files.list(folder)) {
    if (const auto numbers = kOlderName.parse(entry.name); numbers && entry.kind == FileKind::kFile)
      beside.push_back({rank_of(*numbers), folder / entry.name, false, kOlderName});
    const auto rank = rank_of_name(entry.name);
    if (!rank) continue;
    pp = std::max(pp, rank->pp_rank + 1);
    if (const auto path = weights_file(files, folder, entry))
      weights.push_back({*rank, *path, false, kOlderWeightsName});
  }
  for (auto* const names : {&beside, &weights}) sort_by_rank(*names);
  const bool in_weights = !weights.empty() && holds_optimizer(files, weights.front().path);
  if (in_weights && !beside.empty())
    throw Error(ErrorKind::kBadInput, "is a second optimizer: the files of the weights also contain one")
        .in(beside.front().path)
        .hint("files of two checkpoints are mixed in one folder; move one away");
  if (!beside.empty() && pp > 1)
    throw Error(ErrorKind::kBadInput, fmt::format("does not name its pipeline rank, but the model has {} pipeline "
                                                  "stages: the stages have overwritten each other's file",
                                                  pp))
        .in(beside.front().path)
        .hint("only the states of one stage are left: leave out `with-optimizer`");
  return in_weights ? weights : beside;
}

}  // namespace reshard
