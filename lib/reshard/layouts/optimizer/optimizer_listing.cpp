#include "reshard/layouts/optimizer/optimizer_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/map/row_shards.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_dcp.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kFullName("full_tp_rank_{tp:2}_pp_rank_{pp:2}");
constexpr NumberedName kFullFileName("full_<[dp_rank_{dp}]|[ep_rank_{ep}]|tp_rank_{tp}|pp_rank_{pp}>.pt",
                                     kMaxParallelDegree - 1);
constexpr const char* kDifferentCheckpoints = "the files come from different checkpoints, or one of them is damaged";

/// The file of a rank: its place in OptimizerFiles::all.
using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // pp_rank, tp_rank, dp_rank

/// Of all states of a checkpoint, each of which is looked for in all entries: an optimizer has two or three.
constexpr std::size_t kMaxStateNames = 64;

/// A file as errors about another name it.
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

/// The hyperparameters of a group are those of the first file.
void validate_values(const OptimizerFile& file, const OptimizerFile& first, std::size_t group) {
  const PlainValue::Dict &own = file.groups[group].values, &others = first.groups[group].values;
  if (own == others) return;
  std::map<std::string_view, std::array<const PlainValue*, 2>> by_key;
  for (const auto& [key, value] : own) by_key[key][0] = &value;
  for (const auto& [key, value] : others) by_key[key][1] = &value;
  const auto text = [](const PlainValue* value) { return value == nullptr ? "missing" : to_string(*value); };
  std::string message = fmt::format("its parameter group {} has its values in another order than that", group);
  for (const auto& [key, values] : by_key)
    if (values[0] == nullptr || values[1] == nullptr || *values[0] != *values[1]) {
      message = fmt::format("{} of its parameter group {} is {}, but {}", printable(key), group, text(values[0]),
                            text(values[1]));
      break;
    }
  throw Error(ErrorKind::kBadInput, fmt::format("{} in {}", message, short_name(first.path)))
      .in(file.path)
      .hint(kDifferentCheckpoints);
}

/// Groups, hyperparameters and form are those of the first file.
void validate_groups(const OptimizerFile& file, const OptimizerFile& first, bool same_stage) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}, unlike {}", message, short_name(first.path)))
        .in(file.path)
        .hint(kDifferentCheckpoints);
  };
  if (file.form != first.form)
    fail(file.form == OptimizerFile::Form::kZero1 ? "has the states of ZeRO-1" : "has no states of ZeRO-1");
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
    throw Error(ErrorKind::kBadInput, fmt::format("its state is one of more than {} that the optimizer's files have, "
                                                  "which is not known of any optimizer",
                                                  kMaxStateNames))
        .in(file.path)
        .tensor(name)
        .hint("the file is damaged: an optimizer has two or three states, such as exp_avg");
  };
  for (const OptimizerEntry& entry : file.entries) {
    for (const TensorEntry& tensor : entry.tensors) add(tensor.name);
    for (const auto& [name, value] : entry.numbers) add(name);
  }
}

/// What has to be equal on all ranks that hold a part of an entry.
bool has_same_facts(const OptimizerEntry& a, const OptimizerEntry& b) {
  const auto same = [](const TensorEntry& one, const TensorEntry& other) {
    return one.name == other.name && one.dtype == other.dtype;
  };
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same) &&
         a.numbers == b.numbers && a.master.has_value() == b.master.has_value() &&
         (!a.master || a.master->dtype == b.master->dtype);
}

/// The same as text.
std::string facts_of(const OptimizerEntry& entry) {
  std::string facts;
  for (const TensorEntry& tensor : entry.tensors) facts += fmt::format(" {} {},", name(tensor.dtype), tensor.name);
  for (const auto& [number, value] : entry.numbers) facts += fmt::format(" {} = {},", number, to_string(value));
  if (entry.master) facts += fmt::format(" {} master weights,", name(entry.master->dtype));
  if (facts.empty()) return " nothing";
  facts.pop_back();
  return facts;
}

void validate_entries(const OptimizerFile& file, const OptimizerFile& first) {
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

/// Whatever of an entry the data-parallel ranks share by rows: its tensors that are no numbers.
template <typename Use>
void for_each_shared(const OptimizerEntry& entry, Use&& use) {
  for (const TensorEntry& tensor : entry.tensors)
    if (!tensor.shape.empty()) use(tensor, false);
  if (entry.master && !entry.master->shape.empty()) use(*entry.master, true);
}

/// Over how many of `dp` data-parallel ranks the rows of an entry are shared: those of experts are shared by the ranks
/// that have these experts.
std::uint64_t shards_of(const OptimizerFiles& of, const OptimizerFile& file, std::size_t entry, std::uint64_t dp) {
  return file.is_expert(entry) ? dp / of.ep : dp;
}

/// Of how many ranks every shard of the file may be one: the first such number beyond those that are there.
std::optional<std::uint64_t> likely_ranks(const OptimizerFiles& of, const OptimizerFile& file) {
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> rows;  // of all, of a shard, ranks that share them
  for (std::size_t e = 0; e < file.entries.size(); ++e) {
    const OptimizerEntry& entry = file.entries[e];
    bool has_rows = true;
    for_each_shared(entry, [&](const TensorEntry& tensor, bool) {
      has_rows = has_rows && entry.shape && !entry.shape->empty();
      if (has_rows) rows.emplace((*entry.shape)[0], tensor.shape[0], file.is_expert(e) ? of.ep : 1);
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

/// The shape that a shard must have.
Dims expected_shape(const OptimizerFiles& of, const OptimizerFile& file, std::uint32_t entry, std::uint32_t dp_rank) {
  return row_shard_shape(*file.entries[entry].shape, share_of_rows(of, file, entry, dp_rank).count);
}

Error wrong_rows(const OptimizerFiles& of, const OptimizerFile& file, std::uint32_t entry, const TensorEntry& tensor,
                 const Dims& expected) {
  const OptimizerEntry& of_entry = file.entries[entry];
  const auto ranks = likely_ranks(of, file);
  Dims other_rows = tensor.shape;
  if (!other_rows.empty() && !expected.empty()) other_rows[0] = expected[0];
  std::string hint;
  if (ranks)
    hint = fmt::format("the shards are those of {} data-parallel ranks: copy the files of all of them here", *ranks);
  else if (other_rows == expected)
    hint =
        "files of another run are mixed in; or the run had context parallelism, whose ranks write over each other's "
        "files";
  else
    hint = "the file is damaged, or of a run of another model: copy it again, or take another checkpoint";
  return Error(ErrorKind::kBadInput,
               fmt::format("{} of {} has the shape {}, but by shape_info {} over {} data-parallel ranks it has {}",
                           tensor.name, name_of_entry(file, entry), to_string(tensor.shape), to_string(*of_entry.shape),
                           of.dp, to_string(expected)))
      .in(file.path)
      .hint(hint);
}

/// A moment or master weights have a parameter's dims; numbers have none.
void validate_moments(const OptimizerFile& file, std::uint32_t number) {
  const OptimizerEntry& entry = file.entries[number];
  if (entry.shape->empty()) return;
  const auto validate = [&](const TensorEntry& tensor) {
    if (tensor.shape.empty())
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} of {} is a tensor without dims, but by shape_info its parameter has the shape {}",
                              tensor.name, name_of_entry(file, number), to_string(*entry.shape)))
          .in(file.path)
          .hint("the file is damaged: copy it again, or take another checkpoint");
  };
  for (const TensorEntry& tensor : entry.tensors)
    if (is_moment(tensor.name)) validate(tensor);
  if (entry.master) validate(*entry.master);
}

/// Says of one data-parallel rank's files, whose shards are those of one of `ranks` ranks, that they are not all. In xser
/// files optimum-neuron has mixed the ranks' shards.
void set_incomplete(OptimizerFiles& of, const OptimizerFile& file, std::uint32_t entry, const TensorEntry& tensor,
                    std::uint64_t ranks, bool lacks_weights) {
  of.incomplete =
      fmt::format("{} ({} of {} has {} of {} rows, the part of one of {} ranks)",
                  file.is_xser ? "parts of ZeRO-1, each of some data-parallel rank, were saved as if they were all"
                               : "one data-parallel rank's part of ZeRO-1 was saved as if it were all",
                  tensor.name, name_of_entry(file, entry), tensor.shape[0], (*file.entries[entry].shape)[0], ranks);
  if (lacks_weights)
    of.incomplete_hint =
        "copy the files of the other data-parallel ranks here, such as dp_rank_01: nothing else holds "
        "the weights";
  else if (file.is_xser)
    of.incomplete_hint =
        "the weights are complete: do without the optimizer and its master weights; only where "
        "another program than optimum-neuron saved the run may there be files of other data-parallel "
        "ranks to copy here";
  else
    of.incomplete_hint =
        "if the run has saved files of other data-parallel ranks, such as dp_rank_01, copy them here; "
        "else the weights are complete: do without the optimizer and its master weights";
}

/// Every shard has the rows that it must have. Where one data-parallel rank has files, and all its shards have fewer,
/// they are what optimum-neuron leaves of ZeRO-1: `incomplete` says so.
void validate_rows(OptimizerFiles& of, bool lacks_weights) {
  for (std::uint32_t i = 0; i < of.all.size(); ++i) {
    OptimizerFile& file = of.all[i];
    const std::uint32_t dp_rank = i % of.dp;
    std::optional<std::uint64_t> ranks;  // of which the file's shards may be one, where they have too few rows
    for (std::uint32_t e = 0; e < file.entries.size(); ++e) {
      OptimizerEntry& entry = file.entries[e];
      if (file.form == OptimizerFile::Form::kZero1 && !entry.shape && !(entry.tensors.empty() && !entry.master))
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} has states, but no shape in shape_info", name_of_entry(file, e)))
            .in(file.path)
            .hint("the file is damaged: copy it again, or take another checkpoint");
      if (!entry.shape) continue;
      validate_moments(file, e);
      bool drops_master = false;
      for_each_shared(entry, [&](const TensorEntry& tensor, bool is_master) {
        const Dims expected = expected_shape(of, file, e, dp_rank);
        if (tensor.shape == expected) return;
        if (of.is_full && is_master) {  // the converter leaves those of the first rank
          drops_master = true;
          return;
        }
        if (!ranks && of.dp == 1 && !of.is_full) ranks = likely_ranks(of, file);
        if (!ranks) throw wrong_rows(of, file, e, tensor, expected);
        if (of.incomplete.empty()) set_incomplete(of, file, e, tensor, *ranks, lacks_weights);
      });
      if (drops_master) entry.master.reset();
    }
  }
}

/// Of files that NxD's converter has merged: where some master weights are lost, none count.
void drop_partial_masters(OptimizerFiles& of) {
  if (!of.is_full || !of.has_masters) return;
  const auto lost = [](const OptimizerFile& file) {
    return std::any_of(file.entries.begin(), file.entries.end(), [](const OptimizerEntry& entry) {
      return !entry.master && !(entry.tensors.empty() && entry.numbers.empty());
    });
  };
  if (std::none_of(of.all.begin(), of.all.end(), lost)) return;
  of.has_masters = false;
  of.lost_masters = true;
  for (OptimizerFile& file : of.all)
    for (OptimizerEntry& entry : file.entries) entry.master.reset();
}

/// Adds the files that `file`, which is that of a rank, lies in.
void add_files(OptimizerFiles& of, OptimizerFile& file, RankId rank) {
  const auto first = static_cast<std::uint32_t>(of.files.size());
  for (OptimizerEntry& entry : file.entries) {
    for (TensorEntry& tensor : entry.tensors) tensor.file += first;
    if (entry.master) entry.master->file += first;
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
      throw Error(ErrorKind::kBadInput, fmt::format("says that it is of {} rank {}", what, *said))
          .in(file.path)
          .hint("files of ranks were swapped or renamed");
}

void validate_mesh_of_model(const OptimizerFileName& name, const OptimizerFiles& of) {
  if (name.rank.tp_rank < of.tp && name.rank.pp_rank < of.pp) return;
  throw Error(ErrorKind::kBadInput, fmt::format("is of tp rank {}, pp rank {}, but the model has tp {} × pp {} ranks",
                                                name.rank.tp_rank, name.rank.pp_rank, of.tp, of.pp))
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
      throw Error(ErrorKind::kBadInput, "is of the same rank as " + seen.at(rank).filename().string())
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

ShareOfRows share_of_rows(const OptimizerFiles& files, const OptimizerFile& file, std::uint32_t entry,
                          std::uint32_t dp_rank) {
  if (files.form() == OptimizerFile::Form::kWhole) return {};
  const std::uint64_t count = shards_of(files, file, entry, files.dp);
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
      throw Error(ErrorKind::kBadInput, "lies beside files of data-parallel ranks, which it was made of")
          .in(name.is_full ? name.path : names.front().path)
          .hint("move the one or the others away");
    // Without ZeRO-1, experts' states are named by expert-parallel rank, and take the place of data-parallel ranks.
    const std::uint32_t dp_rank = name.rank.has_ep ? name.rank.ep_rank : name.rank.dp_rank;
    of.dp = std::max(of.dp, dp_rank + 1);
    const auto [found, is_new] = by_place.emplace(Place{name.rank.pp_rank, name.rank.tp_rank, dp_rank}, &name);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, "is of the same rank as " + short_name(found->second->path))
          .in(name.path)
          .hint("files of two checkpoints are mixed in one folder; move one away");
  }
  validate_all_there(of, by_place);
  std::set<std::string> state_names;
  for (const auto& [place, name] : by_place) {
    of.all.push_back(read_optimizer_file(files, name->path));
    add_files(of, of.all.back(), name->rank);
    validate_ranks(of.all.back(), name->rank);
    count_state_names(of.all.back(), state_names);
    const std::size_t i = of.all.size() - 1;
    const bool same_stage = i % (std::size_t{of.tp} * of.dp) != 0;
    const OptimizerFile& first = same_stage ? of.all[i / (std::size_t{of.tp} * of.dp) * of.tp * of.dp] : of.all.front();
    validate_groups(of.all.back(), first, same_stage);
    if (same_stage) validate_entries(of.all.back(), first);
    of.has_masters = of.has_masters || of.all.back().has_masters;
  }
  if (of.dp % of.ep != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} data-parallel ranks cannot share {} expert-parallel ranks", of.dp, of.ep))
        .in(folder)
        .hint("files of data-parallel ranks are missing");
  validate_rows(of, shards.lacks_weights);
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
  throw Error(ErrorKind::kBadInput, "lies beside files of torch.distributed.checkpoint, which are an optimizer, too")
      .in(names.front().path)
      .hint("the folder holds the optimizer of two saves; move the older one away");
}

}  // namespace reshard
