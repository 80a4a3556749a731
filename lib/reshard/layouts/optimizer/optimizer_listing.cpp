#include "reshard/layouts/optimizer/optimizer_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/read_each.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_dcp.h"
#include "reshard/layouts/optimizer/row_shards.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/compare_states.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kFullName("full_tp_rank_{tp:2}_pp_rank_{pp:2}");
constexpr NumberedName kFullFileName("full_<[dp_rank_{dp}]|[ep_rank_{ep}]|tp_rank_{tp}|pp_rank_{pp}>.pt",
                                     kMaxParallelDegree - 1);
constexpr const char* kDifferentCheckpoints = "the files come from different checkpoints, or one of them is damaged";

/// Identifies a rank's file.
using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // pp_rank, tp_rank, dp_rank

/// Limit for the states of a checkpoint, as all entries are searched for each of them. An optimizer has two or three.
constexpr std::size_t kMaxStateNames = 64;

/// Name of a file in errors about another file.
std::string short_name(const fs::path& path) {
  const fs::path name = path.filename();
  return (name == kRankCheckpointFile ? path.parent_path().filename() / name : name).string();
}

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

/// Validates that the hyperparameters of a group equal those of the first file.
void validate_values(const OptimizerFile& file, const OptimizerStage& first, std::size_t group) {
  const PlainValue::Dict &own = file.groups[group].values, &others = first.groups[group].values;
  if (own == others) return;
  const auto text = [](const PlainValue* value) { return value == nullptr ? "missing" : to_string(*value); };
  std::string message = fmt::format("its parameter group {} has its values in another order than that", group);
  const auto differences = different_hyperparameters(own, others);
  if (const auto least = std::min_element(differences.begin(), differences.end(),
                                          [](const auto& a, const auto& b) { return a.key < b.key; });
      least != differences.end())
    message = fmt::format("{} of its parameter group {} is {}, but {}", printable(least->key), group, text(least->a),
                          text(least->b));
  throw Error(ErrorKind::kBadInput, fmt::format("{} in {}", message, short_name(first.path)))
      .in(file.path)
      .hint(kDifferentCheckpoints);
}

/// Validates that groups, hyperparameters and form equal those of the first file.
void validate_groups(const OptimizerFile& file, const OptimizerStage& first, bool same_stage) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}, unlike {}", message, short_name(first.path)))
        .in(file.path)
        .hint(kDifferentCheckpoints);
  };
  if (file.form != first.form)
    fail(file.form == OptimizerStage::Form::kZero1 ? "has the states of ZeRO-1" : "has no states of ZeRO-1");
  if (file.groups.size() != first.groups.size()) fail(fmt::format("has {} parameter groups", file.groups.size()));
  if (file.first_expert_group != first.first_expert_group)
    fail(fmt::format("its groups of experts begin with group {}", file.first_expert_group));
  for (std::size_t g = 0; g < file.groups.size(); ++g) {
    validate_values(file, first, g);
    if (same_stage && file.groups[g].count != first.groups[g].count)
      fail(fmt::format("its parameter group {} has {} parameters", g, file.groups[g].count));
  }
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
  for (const OptimizerEntry& entry : file.entries) {
    for (const OptimizerState& state : entry.tensors) add(state.name());
    for (const auto& [name, value] : entry.numbers) add(name);
  }
}

/// Whether the properties that must be equal on all ranks with a shard of an entry are equal.
bool has_same_facts(const OptimizerEntry& a, const OptimizerEntry& b) {
  const auto same = [](const OptimizerState& one, const OptimizerState& other) {
    return one.name() == other.name() && one.dtype() == other.dtype();
  };
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same) &&
         a.numbers == b.numbers && a.has_master() == b.has_master() &&
         (!a.has_master() || a.master.dtype() == b.master.dtype());
}

/// Returns these properties as text.
std::string facts_of(const OptimizerEntry& entry) {
  std::string facts;
  for (const OptimizerState& state : entry.tensors) facts += fmt::format(" {} {},", name(state.dtype()), state.name());
  for (const auto& [number, value] : entry.numbers) facts += fmt::format(" {} = {},", number, to_string(value));
  if (entry.has_master()) facts += fmt::format(" {} master weights,", name(entry.master.dtype()));
  if (facts.empty()) return " nothing";
  facts.pop_back();
  return facts;
}

void validate_entries(const OptimizerFile& file, const OptimizerStage& first) {
  for (std::uint32_t i = 0; i < file.entries.size(); ++i) {
    const OptimizerEntry& own = file.entries[i];
    const OptimizerEntry& other = first.entries[i];
    const auto fail = [&](const std::string& has, const std::string& others) {
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} has{}, but{} in {}", name_of_entry(file, i), has, others, short_name(first.path)))
          .in(file.path)
          .hint(kDifferentCheckpoints);
    };
    if (!has_same_facts(own, other)) fail(facts_of(own), facts_of(other));
    const auto shape_text = [](const OptimizerEntry& entry) {
      return entry.shape ? " the shape " + to_string(*entry.shape) : std::string(" no shape");
    };
    if (own.shape != other.shape) fail(shape_text(own), shape_text(other));
  }
}

/// Appends the shards of a rank's file to those of the stage's earlier ranks.
void merge(OptimizerStage& stage, OptimizerFile&& file) {
  const auto append = [](OptimizerState& all, OptimizerState& own) {
    all.shards.push_back(std::move(own.shards.front()));
  };
  for (std::size_t e = 0; e < file.entries.size(); ++e) {
    OptimizerEntry &all = stage.entries[e], &own = file.entries[e];
    for (std::size_t s = 0; s < own.tensors.size(); ++s) append(all.tensors[s], own.tensors[s]);
    if (own.has_master()) append(all.master, own.master);
  }
}

/// The shards of one rank's optimizer.
struct RankShards {
  const OptimizerFiles& of;
  std::size_t pp_rank;
  std::size_t rank;  // in the stage

  const OptimizerStage& stage() const { return of.stages[pp_rank]; }
  const fs::path& path() const { return of.path_of(pp_rank, rank); }

  /// Calls `use` for each tensor of an entry that data-parallel ranks share by rows, which excludes scalars.
  template <typename Use>
  void for_each_shared(const OptimizerEntry& entry, Use&& use) const {
    for (const OptimizerState& state : entry.tensors)
      if (const TensorEntry* tensor = state.of_rank(rank); tensor != nullptr && !tensor->shape.empty())
        use(*tensor, false);
    if (const TensorEntry* master = entry.master.of_rank(rank); master != nullptr && !master->shape.empty())
      use(*master, true);
  }
};

/// Returns the smallest number of data-parallel ranks, above the existing number, for which the rank's shards have the
/// expected rows.
std::optional<std::uint64_t> likely_ranks(const RankShards& shards) {
  const OptimizerFiles& of = shards.of;
  // Total rows, the shard's rows, and the number by which to divide data-parallel ranks.
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> rows;
  for (std::size_t e = 0; e < shards.stage().entries.size(); ++e) {
    const OptimizerEntry& entry = shards.stage().entries[e];
    bool has_rows = true;
    shards.for_each_shared(entry, [&](const TensorEntry& tensor, bool) {
      has_rows = has_rows && entry.shape && !entry.shape->empty();
      if (has_rows) rows.emplace((*entry.shape)[0], tensor.shape[0], shards.stage().is_expert(e) ? of.ep : 1);
    });
    if (!has_rows) return std::nullopt;
  }
  for (std::uint64_t count = of.dp + of.ep; count <= 4096; count += of.ep)
    if (std::all_of(rows.begin(), rows.end(), [&](const auto& one) {
          const auto& [all, own, share] = one;
          return own == rows_per_shard(all, count / share);
        }))
      return count;
  return std::nullopt;
}

Error wrong_rows(const RankShards& shards, std::uint32_t entry, const TensorEntry& tensor, const Dims& expected) {
  const auto ranks = likely_ranks(shards);
  Dims other_rows = tensor.shape;
  if (!other_rows.empty() && !expected.empty()) other_rows[0] = expected[0];
  std::string hint;
  if (ranks)
    hint = fmt::format("the shards belong to {} data-parallel ranks: copy the files of all of them here", *ranks);
  else if (other_rows == expected)
    hint =
        "files of another run are mixed in; or the run used context parallelism, whose ranks overwrite each other's "
        "files";
  else
    hint = "the file is damaged, or belongs to a run of another model: copy it again, or use another checkpoint";
  return Error(ErrorKind::kBadInput,
               fmt::format(
                   "{} of {} has the shape {}, but according to shape_info {} over {} data-parallel ranks it has {}",
                   tensor.name, name_of_entry(shards.stage(), entry), to_string(tensor.shape),
                   to_string(*shards.stage().entries[entry].shape), shards.of.dp, to_string(expected)))
      .in(shards.path())
      .hint(hint);
}

/// Validates that moments and master weights have dims if their parameter has dims.
void validate_moments(const RankShards& shards, std::uint32_t number) {
  const OptimizerEntry& entry = shards.stage().entries[number];
  if (entry.shape->empty()) return;
  const auto validate = [&](const OptimizerState& state) {
    const TensorEntry* tensor = state.of_rank(shards.rank);
    if (tensor != nullptr && tensor->shape.empty())
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("{} of {} is a tensor without dims, but according to shape_info its parameter has the shape {}",
                      tensor->name, name_of_entry(shards.stage(), number), to_string(*entry.shape)))
          .in(shards.path())
          .hint("the file is damaged: copy it again, or use another checkpoint");
  };
  for (const OptimizerState& state : entry.tensors)
    if (is_moment(state.name())) validate(state);
  validate(entry.master);
}

/// Sets `incomplete` for files of one data-parallel rank whose shards are those of one of `ranks` ranks. In xser files,
/// optimum-neuron has mixed the ranks' shards.
void set_incomplete(OptimizerFiles& of, const OptimizerStage& stage, std::uint32_t entry, const TensorEntry& tensor,
                    std::uint64_t ranks, bool lacks_weights) {
  of.incomplete =
      fmt::format("{} ({} of {} has {} of {} rows, the share of one of {} ranks)",
                  of.is_xser ? "ZeRO-1 shards of some data-parallel ranks were saved as if they were complete"
                             : "the ZeRO-1 shard of one data-parallel rank was saved as if it were complete",
                  tensor.name, name_of_entry(stage, entry), tensor.shape[0], (*stage.entries[entry].shape)[0], ranks);
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

/// Validates the rows of every shard. If only one data-parallel rank has files and all its shards have fewer rows, they
/// are what optimum-neuron saves of ZeRO-1, and `incomplete` is set.
void validate_rows(OptimizerFiles& of, const RankShards& shards, bool lacks_weights) {
  OptimizerStage& stage = of.stages[shards.pp_rank];
  const auto dp_rank = static_cast<std::uint32_t>(shards.rank % of.dp);
  std::optional<std::uint64_t> ranks;  // likely number of ranks, if the shards have too few rows
  for (std::uint32_t e = 0; e < stage.entries.size(); ++e) {
    OptimizerEntry& entry = stage.entries[e];
    if (stage.form == OptimizerStage::Form::kZero1 && !entry.shape && (!entry.tensors.empty() || entry.has_master()))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} has states, but no shape in shape_info", name_of_entry(stage, e)))
          .in(shards.path())
          .hint("the file is damaged: copy it again, or use another checkpoint");
    if (!entry.shape) continue;
    validate_moments(shards, e);
    bool drops_master = false;
    const Dims expected = row_shard_shape(*entry.shape, share_of_rows(of, stage, e, dp_rank).count);
    shards.for_each_shared(entry, [&](const TensorEntry& tensor, bool is_master) {
      if (tensor.shape == expected) return;
      if (of.is_full && is_master) {  // the converter keeps the first rank's master weights
        drops_master = true;
        return;
      }
      if (!ranks && of.dp == 1 && !of.is_full) ranks = likely_ranks(shards);
      if (!ranks) throw wrong_rows(shards, e, tensor, expected);
      if (of.incomplete.empty()) set_incomplete(of, stage, e, tensor, *ranks, lacks_weights);
    });
    if (drops_master) entry.master.shards.clear();
  }
}

/// Drops all master weights if some are lost in files that NxD's converter has merged.
void drop_partial_masters(OptimizerFiles& of) {
  if (!of.is_full || !of.has_masters) return;
  const auto lost = [](const OptimizerStage& stage) {
    return std::any_of(stage.entries.begin(), stage.entries.end(),
                       [](const OptimizerEntry& entry) { return !entry.has_master() && entry.has_states(); });
  };
  if (std::none_of(of.stages.begin(), of.stages.end(), lost)) return;
  of.has_masters = false;
  of.lost_masters = true;
  for (OptimizerStage& stage : of.stages)
    for (OptimizerEntry& entry : stage.entries) entry.master.shards.clear();
}

/// Adds the files of `file`, which belongs to a rank.
void add_files(OptimizerFiles& of, OptimizerFile& file, RankId rank) {
  const auto first = static_cast<std::uint32_t>(of.files.size());
  for (OptimizerEntry& entry : file.entries) {
    for (OptimizerState& state : entry.tensors) state.shards.front().file += first;
    if (entry.has_master()) entry.master.shards.front().file += first;
  }
  for (ContainerFile& one : std::exchange(file.files, {})) {
    SourceFile& added = of.files.emplace_back();
    added.path = std::move(one.path);
    added.size_bytes = one.size_bytes;
    added.tp_rank = rank.tp_rank;
    added.pp_rank = rank.pp_rank;
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

std::vector<OptimizerFileName> list_optimizer_files(Files& files, const fs::path& folder) {
  std::vector<OptimizerFileName> names;
  if (!files.is_directory(folder)) return names;
  std::map<RankId, fs::path> seen;
  for (const DirectoryEntry& entry : files.list(folder)) {
    const auto full = kFullFileName.parse(entry.name);
    const auto numbers = full ? full : kRankFileName.parse(entry.name);
    if (entry.kind != FileKind::kFile || !numbers) continue;
    const RankId rank = rank_of(*numbers);
    const fs::path path = folder / entry.name;
    if (!seen.emplace(rank, path).second)
      throw Error(ErrorKind::kBadInput, "belongs to the same rank as " + seen.at(rank).filename().string())
          .in(path)
          .hint("files of two checkpoints are mixed in one folder; move one away");
    names.push_back({rank, path, full.has_value(), full ? kFullName : kDpRankName});
  }
  if (names.empty()) return list_older_optimizer(files, folder);
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
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
      throw Error(ErrorKind::kBadInput, "belongs to the same rank as " + short_name(found->second->path))
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
    add_files(of, file, name->rank);
    validate_ranks(file, name->rank);
    count_state_names(file, state_names);
    of.has_masters = of.has_masters || file.has_masters;
    of.is_xser = of.is_xser || file.is_xser;
    of.others.insert(file.others.begin(), file.others.end());
    of.paths.push_back(name->path);
    const bool same_stage = std::get<0>(place) < of.stages.size();
    if (!of.stages.empty()) validate_groups(file, same_stage ? of.stages.back() : of.stages.front(), same_stage);
    if (!same_stage) {
      of.stages.push_back(std::move(file));
      continue;
    }
    validate_entries(file, of.stages.back());
    merge(of.stages.back(), std::move(file));
  }
  if (of.dp % of.ep != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} data-parallel ranks cannot share {} expert-parallel ranks", of.dp, of.ep))
        .in(folder)
        .hint("files of data-parallel ranks are missing");
  for (std::size_t pp_rank = 0; pp_rank < of.pp; ++pp_rank)
    for (std::size_t rank = 0; rank < of.ranks(); ++rank) validate_rows(of, {of, pp_rank, rank}, shards.lacks_weights);
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
