#include "reshard/layouts/ranks/other_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

/// Whether a tensor of that name in the files of a pipeline rank belongs to another pipeline rank.
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

constexpr const char* kSwapped =
    "metadata files, or the files of two pipeline ranks, were swapped or come from different checkpoints";

/// Returns the number of a parameter's layer: the first part of its name that is a number.
std::optional<std::uint64_t> layer_of(std::string_view name) {
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    if (const auto number = parse_unsigned(name.substr(0, end), UINT32_MAX)) return number;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return std::nullopt;
}

/// Validates that the first layer of each pipeline rank precedes that of the next. If files contain the names of all
/// stages, this is the only sign that two metadata files were swapped.
void validate_stages_in_order(const ShardedCheckpoint& checkpoint) {
  std::optional<std::uint64_t> before;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank) {
    std::optional<std::uint64_t> first;
    for (const ParallelParameter& parameter : checkpoint.metadata[pp_rank].parameters)
      if (const auto layer = layer_of(parameter.name)) first = std::min(first.value_or(*layer), *layer);
    if (!first) continue;
    if (before && *first <= *before)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("its first layer is {}, but a pipeline rank before it begins with layer {}", *first, *before))
          .in(metadata_path(checkpoint, pp_rank))
          .hint(kSwapped);
    before = first;
  }
}

/// Maps names to the pipeline ranks whose metadata lists them.
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
  const std::uint64_t removed = remove_from_all(checkpoint, [&](std::uint32_t pp_rank, const std::string& name) {
    const auto found = listed.find(name);
    return found != listed.end() && !found->second[pp_rank];
  });
  if (removed == 0) return 0;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.files.size(); ++pp_rank)
    for (const Container& file : checkpoint.files[pp_rank])
      if (file.tensors.empty())
        throw Error(ErrorKind::kBadInput,
                    fmt::format("contains none of the tensors that {} lists, only those of other stages",
                                metadata_path(checkpoint, pp_rank).filename().string()))
            .in(file.path)
            .hint(kSwapped);
  validate_stages_in_order(checkpoint);
  return removed;
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
      "ignored {} tensor{} of other pipeline stages: each stage's files contain more than its metadata lists",
      checkpoint.other_stages, checkpoint.other_stages == 1 ? "" : "s");
}

}  // namespace reshard
