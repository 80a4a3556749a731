#include "reshard/layouts/optimizer/older_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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

void add(std::map<RankId, fs::path>& found, RankId rank, const fs::path& path) {
  const auto [other, is_new] = found.emplace(rank, path);
  if (is_new) return;
  throw Error(ErrorKind::kBadInput, "belongs to the same rank as " + other->second.string())
      .in(path)
      .hint("files of two checkpoints are mixed in one folder; move one away");
}

}  // namespace

bool is_older_optimizer_name(std::string_view name) {
  return kOlderName.matches(name);
}

std::vector<OptimizerFileName> list_older_optimizer(Files& files, const fs::path& folder) {
  std::map<RankId, fs::path> beside, weights;
  std::uint32_t pp = 1;
  for (const DirectoryEntry& entry : files.list(folder)) {
    if (const auto numbers = kOlderName.parse(entry.name); numbers && entry.kind == FileKind::kFile)
      add(beside, rank_of(*numbers), folder / entry.name);
    const auto rank = rank_of_name(entry.name);
    if (!rank) continue;
    pp = std::max(pp, rank->pp_rank + 1);
    if (const auto path = weights_file(files, folder, entry)) add(weights, *rank, *path);
  }
  const bool in_weights = !weights.empty() && holds_optimizer(files, weights.begin()->second);
  if (in_weights && !beside.empty())
    throw Error(ErrorKind::kBadInput, "is a second optimizer: the files of the weights also contain one")
        .in(beside.begin()->second)
        .hint("files of two checkpoints are mixed in one folder; move one away");
  if (!beside.empty() && pp > 1)
    throw Error(ErrorKind::kBadInput, fmt::format("does not name its pipeline rank, but the model has {} pipeline "
                                                  "stages: the stages have overwritten each other's file",
                                                  pp))
        .in(beside.begin()->second)
        .hint("only the states of one stage are left: leave out `with-optimizer`");
  std::vector<OptimizerFileName> names;
  if (in_weights || !beside.empty())
    for (const auto& [rank, path] : in_weights ? weights : beside)
      names.push_back({rank, path, false, in_weights ? kOlderWeightsName : kOlderName});
  return names;
}

}  // namespace reshard
