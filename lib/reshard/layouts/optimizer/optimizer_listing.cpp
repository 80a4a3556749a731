#include "reshard/layouts/optimizer/optimizer_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/read_each.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_dcp.h"
#include "reshard/layouts/optimizer/optimizer_file.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/row_shards.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kFullName("full_tp_rank_{tp:2}_pp_rank_{pp:2}");
constexpr NumberedName kFullFileName("full_<[dp_rank_{dp}]|[ep_rank_{ep}]|tp_rank_{tp}|pp_rank_{pp}>.pt",
                                     kMaxParallelDegree - 1);

/// Identifies a rank's file.
using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // pp_rank, tp_rank, dp_rank

/// Limit for the states of a checkpoint, as all entries are searched for each of them. An optimizer has two or three.
constexpr std::size_t kMaxStateNames = 64;

void validate_all_there(const OptimizerFiles& of, const std::map<Place, const OptimizerFileName*>& by_place) {
  constexpr std::size_t kNamed = 7;
  std::vector<std::string> missing;
  std::size_t count = 0;
  for (std::uint32_t p = 0; p < of.pp; ++p)
    for (std::uint32_t t = 0; t < of.tp; ++t)
      for (std::uint32_t d = 0; d < of.dp; ++d) {
        if (by_place.count({p, t, d})) continue;
        if (++count <= kNamed) missing.push_back(by_place.begin()->second->name.print(numbers_of({t, p, d})));
      }
  if (count == 0) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("{} of the optimizer's {} files (tp {} × pp {} × dp {}) {} missing: {}{}", count,
                          std::size_t{of.tp} * of.pp * of.dp, of.tp, of.pp, of.dp, count == 1 ? "is" : "are",
                          count == missing.size() ? list_names(missing) : join(missing, ", "),
                          count == missing.size() ? "" : ", …"))
      .in(of.folder)
      .hint("copy the missing files here; the optimizer's states cannot be put together without them");
}

/// Adds the names of the file's states to `names`.
/// \throws Error kBadInput if they are too many.
void count_state_names(const OptimizerFile& file, std::set<std::string>& names) {
  const auto add = [&](const std::string& name) {
    if (!names.insert(name).second || names.size() <= kMaxStateNames) return;
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("its state is one of more than {} in the optimizer's files, more than any known optimizer has",
                    kMaxStateNames))
        .in(file.path)
        .tensor(name)
        .hint("the file is damaged: an optimizer has two or three states, such as exp_avg");
  };
  for (const OptimizerEntry& entry : file.entries)
    for (const auto& [name, value] : entry.numbers) add(name);
  for (const StateShard& shard : file.shards) add(shard.state());
}

/// Returns the smallest number of data-parallel ranks, above the existing number, for which the rank's shards have the
/// expected rows.
std::optional<std::uint64_t> likely_ranks(const OptimizerFiles& of, const OptimizerStage& stage, std::uint32_t rank) {
  // Total rows, the shard's rows, and the number by which to divide data-parallel ranks.
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> rows;
  for (const StateShard& shard : stage.of_rank(rank)) {
    if (!shard.has_rows()) continue;
    const std::optional<Dims>& shape = stage.entries[shard.entry].shape;
    if (!shape || shape->empty()) return std::nullopt;
    rows.emplace((*shape)[0], shard.tensor.shape[0], stage.is_expert(shard.entry) ? of.ep : 1);
  }
  for (std::uint64_t count = of.dp + of.ep; count <= 4096; count += of.ep)
    if (std::all_of(rows.begin(), rows.end(), [&](const auto& one) {
          const auto& [all, own, share] = one;
          return own == rows_per_shard(all, count / share);
        }))
      return count;
  return std::nullopt;
}

Error bad_shard(const OptimizerFiles& of, std::size_t pp_rank, const StateShard& shard, const std::string& message) {
  return Error(ErrorKind::kBadInput, message)
      .in(of.path_of(pp_rank, shard.rank))
      .hint("the file is damaged: copy it again, or use another checkpoint");
}

Error wrong_rows(const OptimizerFiles& of, std::size_t pp_rank, const StateShard& shard, const Dims& expected) {
  const OptimizerStage& stage = of.stages[pp_rank];
  const Dims& shape = shard.tensor.shape;
  const bool rows_alone =
      shape.size() == expected.size() && std::equal(shape.begin() + 1, shape.end(), expected.begin() + 1);
  std::string hint;
  if (const auto ranks = likely_ranks(of, stage, shard.rank))
    hint = fmt::format("the shards belong to {} data-parallel ranks: copy the files of all of them here", *ranks);
  else if (rows_alone)
    hint =
        "files of another run are mixed in; or the run used context parallelism, whose ranks overwrite each other's "
        "files";
  else
    hint = "the file is damaged, or belongs to a run of another model: copy it again, or use another checkpoint";
  return bad_shard(of, pp_rank, shard,
                   fmt::format("{} of {} has the shape {}, but according to shape_info {} over {} data-parallel ranks "
                               "it has {}",
                               shard.state(), stage.name_of(shard.entry), to_string(shape),
                               to_string(*stage.entries[shard.entry].shape), of.dp, to_string(expected)))
      .hint(hint);
}

/// Sets `incomplete` for files of one data-parallel rank whose shards are those of one of `ranks` ranks. In xser files,
/// optimum-neuron has mixed the ranks' shards.
void set_incomplete(OptimizerFiles& of, const OptimizerStage& stage, const StateShard& shard, std::uint64_t ranks,
                    bool lacks_weights) {
  of.incomplete = fmt::format(
      "{} ({} of {} has {} of {} rows, the share of one of {} ranks)",
      of.is_xser ? "ZeRO-1 shards of some data-parallel ranks were saved as if they were complete"
                 : "the ZeRO-1 shard of one data-parallel rank was saved as if it were complete",
      shard.state(), stage.name_of(shard.entry), shard.tensor.shape[0], (*stage.entries[shard.entry].shape)[0], ranks);
  if (lacks_weights)
    of.incomplete_hint =
        "copy the files of the other data-parallel ranks here, such as dp_rank_01: no other file contains the weights";
  else if (of.is_xser)
    of.incomplete_hint =
        "the weights are complete: leave out the optimizer and its master weights; only if another program than "
        "optimum-neuron saved the run can there be files of other data-parallel ranks to copy here";
  else
    of.incomplete_hint =
        "if the run has saved files of other data-parallel ranks, such as dp_rank_01, copy them here; otherwise the "
        "weights are complete: leave out the optimizer and its master weights";
}

/// Validates the rows of every shard of a ZeRO-1 stage, and sets their first rows. If only one data-parallel rank has
/// files and all its shards have fewer rows, they are what optimum-neuron saves of ZeRO-1, and `incomplete` is set.
void place_rows(OptimizerFiles& of, std::size_t pp_rank, bool lacks_weights) {
  OptimizerStage& stage = of.stages[pp_rank];
  if (stage.form == OptimizerStage::Form::kWhole) return;
  std::optional<std::uint64_t> ranks;  // likely number of ranks, if the shards of `rank` have too few rows
  std::uint32_t rank = 0;
  for (StateShard& shard : stage.shards) {
    if (std::exchange(rank, shard.rank) != shard.rank) ranks.reset();
    const std::optional<Dims>& shape = stage.entries[shard.entry].shape;
    if (!shape)
      throw bad_shard(of, pp_rank, shard,
                      fmt::format("{} has states, but no shape in shape_info", stage.name_of(shard.entry)));
    if (!shard.has_rows()) {
      if (!shape->empty() && (shard.is_master() || is_moment(shard.state())))
        throw bad_shard(of, pp_rank, shard,
                        fmt::format("{} of {} is a tensor without dims, but according to shape_info its parameter has "
                                    "the shape {}",
                                    shard.state(), stage.name_of(shard.entry), to_string(*shape)));
      continue;
    }
    const ShareOfRows share = share_of_rows(of, stage, shard.entry, shard.rank % of.dp);
    const Dims expected = row_shard_shape(*shape, share.count);
    if (shard.tensor.shape == expected) {
      shard.begin_row = expected[0] * share.number;
      continue;
    }
    if (of.is_full && shard.is_master()) {  // the converter keeps the first rank's master weights
      of.lost_masters = true;
      continue;
    }
    if (!ranks && of.dp == 1 && !of.is_full) ranks = likely_ranks(of, stage, rank);
    if (!ranks) throw wrong_rows(of, pp_rank, shard, expected);
    if (of.incomplete.empty()) set_incomplete(of, stage, shard, *ranks, lacks_weights);
  }
}

/// Drops all master weights if some are lost in files that NxD's converter has merged.
void drop_partial_masters(OptimizerFiles& of) {
  if (!of.is_full || !of.has_masters) return;
  for (const OptimizerStage& stage : of.stages) of.lost_masters = of.lost_masters || stage.first_without_master();
  if (!of.lost_masters) return;
  of.has_masters = false;
  for (OptimizerStage& stage : of.stages)
    std::erase_if(stage.shards, [](const StateShard& shard) { return shard.is_master(); });
}

/// Adds the shards of a rank's file, and the files that contain them.
void add_shards(OptimizerFiles& of, OptimizerFile& file, RankId id, std::uint32_t rank) {
  const auto first = static_cast<std::uint32_t>(of.files.size());
  for (StateShard& shard : file.shards) {
    of.has_masters = of.has_masters || shard.is_master();
    shard.tensor.file += first;
    shard.rank = rank;
    of.stages.back().shards.push_back(std::move(shard));
  }
  for (ContainerFile& one : file.files) {
    SourceFile& added = of.files.emplace_back();
    added.path = std::move(one.path);
    added.size_bytes = one.size_bytes;
    added.tp_rank = id.tp_rank;
    added.pp_rank = id.pp_rank;
    added.stamp = one.stamp;
  }
  ++of.file_count;
}

void validate_ranks(const OptimizerFile& file, RankId rank) {
  for (const auto& [what, said, own] :
       {std::tuple("dp", file.dp_rank, rank.dp_rank), {"tp", file.tp_rank, rank.tp_rank}})
    if (said && *said != own)
      throw Error(ErrorKind::kBadInput, fmt::format("records that it belongs to {} rank {}", what, *said))
          .in(file.path)
          .hint("rank files were swapped or renamed");
}

void validate_mesh_of_model(const OptimizerFileName& name, const OptimizerFiles& of) {
  if (name.rank.tp_rank < of.tp && name.rank.pp_rank < of.pp) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("belongs to tp rank {}, pp rank {}, but the model has tp {} × pp {} ranks", name.rank.tp_rank,
                          name.rank.pp_rank, of.tp, of.pp))
      .in(name.path)
      .hint("the optimizer's files and the model's come from different checkpoints");
}

}  // namespace

void sort_by_rank(std::vector<OptimizerFileName>& names) {
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return std::tie(a.rank, a.path) < std::tie(b.rank, b.path); });
}

std::vector<OptimizerFileName> list_optimizer_files(Files& files, const fs::path& folder) {
  std::vector<OptimizerFileName> names;
  if (!files.is_directory(folder)) return names;
  for (const DirectoryEntry& entry : files.list(folder)) {
    const auto full = kFullFileName.parse(entry.name);
    const auto numbers = full ? full : kRankFileName.parse(entry.name);
    if (entry.kind != FileKind::kFile || !numbers) continue;
    names.push_back({rank_of(*numbers), folder / entry.name, full.has_value(), full ? kFullName : kDpRankName});
  }
  if (names.empty()) return list_older_optimizer(files, folder);
  sort_by_rank(names);
  return names;
}

bool has_optimizer_files(Files& files, const fs::path& folder) {
  try {
    return !list_optimizer_files(files, folder).empty();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return true;
  }
}

ShareOfRows share_of_rows(const OptimizerFiles& files, const OptimizerStage& stage, std::uint32_t entry,
                          std::uint32_t dp_rank) {
  if (files.form() == OptimizerStage::Form::kWhole) return {};
  const std::uint64_t count = stage.is_expert(entry) ? files.dp / files.ep : files.dp;
  return {count, dp_rank / (files.dp / count)};
}

OptimizerFiles read_optimizer_files(Files& files, const fs::path& folder, const std::vector<OptimizerFileName>& names,
                                    const ShardedCheckpoint& shards) {
  OptimizerFiles of;
  of.folder = folder;
  of.tp = shards.tp;
  of.pp = shards.pp;
  of.ep = shards.ep;
  of.is_full = names.front().is_full;
  std::map<Place, const OptimizerFileName*> by_place;
  for (const OptimizerFileName& name : names) {
    validate_mesh_of_model(name, of);
    if (name.is_full != of.is_full)
      throw Error(ErrorKind::kBadInput, "is next to the data-parallel rank files that it was merged from")
          .in(name.is_full ? name.path : names.front().path)
          .hint("move either of them away");
    // Without ZeRO-1, experts' states are named by expert-parallel rank, which then serves as data-parallel rank.
    const std::uint32_t dp_rank = name.rank.has_ep ? name.rank.ep_rank : name.rank.dp_rank;
    of.dp = std::max(of.dp, dp_rank + 1);
    const auto [found, is_new] = by_place.emplace(Place{name.rank.pp_rank, name.rank.tp_rank, dp_rank}, &name);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, "belongs to the same rank as " + short_name(found->second->path, name.path))
          .in(name.path)
          .hint("files of two checkpoints are mixed in one folder; move one away");
  }
  validate_all_there(of, by_place);
  std::vector<fs::path> paths;
  for (const auto& [place, name] : by_place) paths.push_back(name->path);
  auto reads = read_each(paths.size(), [&](std::size_t i) { return read_optimizer_file(files, paths[i]); });
  auto next = reads.begin();
  std::set<std::string> state_names;
  for (const auto& [place, name] : by_place) {
    OptimizerFile file = (next++)->get();
    validate_ranks(file, name->rank);
    count_state_names(file, state_names);
    of.is_xser = of.is_xser || file.is_xser;
    of.others.insert(file.others.begin(), file.others.end());
    of.paths.push_back(name->path);
    const auto& [pp_rank, tp_rank, dp_rank] = place;
    const bool same_stage = pp_rank < of.stages.size();
    if (!of.stages.empty()) validate_agreement(file, same_stage ? of.stages.back() : of.stages.front(), same_stage);
    if (!same_stage)
      of.stages.push_back(
          {file.path, file.form, std::move(file.groups), std::move(file.entries), {}, file.first_expert_group});
    add_shards(of, file, name->rank, tp_rank * of.dp + dp_rank);
  }
  if (of.dp % of.ep != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} data-parallel ranks cannot share {} expert-parallel ranks", of.dp, of.ep))
        .in(folder)
        .hint("files of data-parallel ranks are missing");
  for (std::size_t pp_rank = 0; pp_rank < of.pp; ++pp_rank) place_rows(of, pp_rank, shards.lacks_weights);
  drop_partial_masters(of);
  return of;
}

std::optional<OptimizerFiles> read_optimizer(Files& files, const fs::path& folder, const ShardedCheckpoint& shards) {
  if (!files.is_directory(folder)) return std::nullopt;
  const auto names = list_optimizer_files(files, folder);
  const bool has_own_folder = folder != shards.folder.path;
  if (!has_own_folder || (!holds_dcp_metadata(files, folder) && !holds_dcp_items(files, folder))) {
    if (names.empty()) return std::nullopt;
    return read_optimizer_files(files, folder, names, shards);
  }
  if (names.empty()) return read_optimizer_dcp(files, folder, shards);
  throw Error(ErrorKind::kBadInput, "is next to an optimizer saved by torch.distributed.checkpoint")
      .in(names.front().path)
      .hint("the folder contains the optimizers of two saves; move the older one away");
}

}  // namespace reshard
