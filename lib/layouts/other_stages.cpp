#include "reshard/layouts/other_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>

namespace reshard {
namespace {

/// Whether the files of a pipeline rank have a tensor of that name that is another rank's.
using IsOthers = std::function<bool(std::uint32_t pp_rank, const std::string& name)>;

std::uint64_t remove_from(Container& file, std::uint32_t pp_rank, const IsOthers& is_others) {
  return std::erase_if(file.tensors, [&](const TensorEntry& tensor) { return is_others(pp_rank, tensor.name); });
}

std::uint64_t remove_from_all(ShardedCheckpoint& checkpoint, const IsOthers& is_others) {
  std::uint64_t removed = 0;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.files.size(); ++pp_rank)
    for (Container& file : checkpoint.files[pp_rank]) removed += remove_from(file, pp_rank, is_others);
  for (ShardedCheckpoint::Copy& copy : checkpoint.copies)
    removed += remove_from(copy.file, copy.rank.pp_rank, is_others);
  return removed;
}

/// Names → the pipeline ranks whose metadata lists them.
std::unordered_map<std::string, std::vector<bool>> listed_names(const ShardedCheckpoint& checkpoint) {
  std::unordered_map<std::string, std::vector<bool>> listed;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank)
    for (const ParallelParameter& parameter : checkpoint.metadata[pp_rank].parameters) {
      std::vector<bool>& ranks = listed[parameter.name];
      ranks.resize(checkpoint.metadata.size());
      ranks[pp_rank] = true;
    }
  return listed;
}

}  // namespace

std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint) {
  if (checkpoint.metadata.size() < 2) return 0;
  const auto listed = listed_names(checkpoint);
  return remove_from_all(checkpoint, [&](std::uint32_t pp_rank, const std::string& name) {
    const auto found = listed.find(name);
    return found != listed.end() && !found->second[pp_rank];
  });
}

std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied) {
  if (checkpoint.metadata.size() < 2) return 0;
  const auto listed = listed_names(checkpoint);
  return remove_from_all(checkpoint, [&](std::uint32_t pp_rank, const std::string& name) {
    const auto is_it = [&](const TiedParameter& parameter) { return parameter.name == name; };
    return pp_rank + 1 < checkpoint.pp && !listed.count(name) && std::any_of(tied.begin(), tied.end(), is_it);
  });
}

std::optional<std::string> other_stages_note(const ShardedCheckpoint& checkpoint) {
  if (checkpoint.other_stages == 0) return std::nullopt;
  return fmt::format(
      "ignored {} tensor{} of other pipeline stages: each stage's files hold more than its metadata lists",
      checkpoint.other_stages, checkpoint.other_stages == 1 ? "" : "s");
}

}  // namespace reshard
