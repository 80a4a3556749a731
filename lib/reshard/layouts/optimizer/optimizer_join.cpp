#include "reshard/layouts/optimizer/optimizer_join.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/optimizer_keys.h"
#include "reshard/layouts/states/row_shards.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The stored tensors of a model's map by rank and name.
class LocalTensors {
 public:
  LocalTensors(const SourceMap& model, const OptimizerFiles& mesh) : model_(model), mesh_(mesh) {
    by_name_.resize(std::size_t{mesh.pp} * mesh.ep * mesh.tp);
    for (std::uint32_t s = 0; s < model.stored.size(); ++s) {
      const StoredTensor& stored = model.stored[s];
      const SourceFile& file = model.files[stored.file];
      auto& found = by_name_[place(file.pp_rank, file.ep_rank, file.tp_rank)][stored.name.text()];
      // A replica of several logical tensors is listed for each of them. Tensors that other data-parallel ranks saved
      // come later.
      if (found.empty() || model.stored[found.front()].file == stored.file) found.push_back(s);
    }
    logical_.resize(model.stored.size());
    for (std::uint32_t l = 0; l < model.logical.size(); ++l) {
      if (model.logical[l].constant()) continue;
      for (const Piece& piece : model.pieces[l]) logical_[piece.stored].emplace(piece.stored_begin, l);
    }
  }

  /// Returns the stored tensors of a name on a rank; empty if the rank has no such tensor.
  const std::vector<std::uint32_t>& find(std::uint32_t pp_rank, std::uint32_t ep_rank, std::uint32_t tp_rank,
                                         const std::string& name) const {
    static const std::vector<std::uint32_t> kNone;
    const auto& of_rank = by_name_[place(pp_rank, ep_rank, tp_rank)];
    const auto found = of_rank.find(name);
    return found == of_rank.end() ? kNone : found->second;
  }

  /// Returns the logical tensors that a stored tensor has pieces of, in its order.
  std::vector<std::uint32_t> logical_of(std::uint32_t stored) const {
    std::vector<std::uint32_t> all;
    for (const auto& [begin, logical] : logical_[stored])
      if (std::find(all.begin(), all.end(), logical) == all.end()) all.push_back(logical);
    return all;
  }

  const SourceMap& model() const { return model_; }

 private:
  std::size_t place(std::uint32_t pp_rank, std::uint32_t ep_rank, std::uint32_t tp_rank) const {
    return (std::size_t{pp_rank} * mesh_.ep + ep_rank) * mesh_.tp + tp_rank;
  }

  const SourceMap& model_;
  const OptimizerFiles& mesh_;
  std::vector<std::unordered_map<std::string, std::vector<std::uint32_t>>> by_name_;
  std::vector<std::set<std::pair<Dims, std::uint32_t>>> logical_;  // by stored tensor, with the begins of pieces
};

/// Returns the expert-parallel rank whose parameters an entry belongs to, in the file of a data-parallel rank. With
/// ZeRO-1, only experts have one (NxD's optimizer/zero_redundancy_optimizer.py). Otherwise each such rank has a file of
/// all its parameters.
std::uint32_t ep_rank_of(const OptimizerFiles& files, const OptimizerStage& stage, std::uint32_t entry,
                         std::uint32_t dp_rank) {
  return stage.is_expert(entry) || files.form() == OptimizerStage::Form::kWhole ? dp_rank % files.ep : 0;
}

/// Finds the tensors of the model that shards belong to.
class StateParts {
 public:
  StateParts(const ShardedOptimizer& optimizer, const LocalTensors& locals) : optimizer_(optimizer), locals_(locals) {}

  /// Returns all ranks' shards of a state.
  std::vector<StatePart> collect(const std::string& state) const {
    const OptimizerFiles& files = optimizer_.files;
    std::vector<StatePart> parts;
    std::map<std::pair<std::string, std::uint32_t>, SharedName> names;  // by the entry's name or id
    for (std::uint32_t pp_rank = 0; pp_rank < files.pp; ++pp_rank) {
      const OptimizerStage& stage = files.stages[pp_rank];
      std::vector<const SharedName*> of_entry(stage.entries.size());
      for (const StateShard& shard : stage.shards) {
        if (shard.state() != state) continue;
        const SharedName*& name = of_entry[shard.entry];
        if (name == nullptr) {
          const std::string& own = stage.entries[shard.entry].name;
          name = &names.try_emplace({own, own.empty() ? shard.entry : 0}, name_in_file(stage, shard)).first->second;
        }
        add(parts, pp_rank, shard, *name);
      }
    }
    return parts;
  }

 private:
  void add(std::vector<StatePart>& parts, std::uint32_t pp_rank, const StateShard& shard,
           const SharedName& name) const {
    const OptimizerFiles& files = optimizer_.files;
    const std::uint32_t ep_rank = ep_rank_of(files, files.stages[pp_rank], shard.entry, shard.rank % files.dp);
    const std::string& parameter = optimizer_.names_of(pp_rank, ep_rank)[shard.entry];
    for (const std::uint32_t local : locals_.find(pp_rank, ep_rank, shard.rank / files.dp, parameter)) {
      validate_shape(pp_rank, shard, local);
      parts.push_back({&shard, pp_rank, local, name});
    }
  }

  static std::string name_in_file(const OptimizerStage& stage, const StateShard& shard) {
    const std::string& own = stage.entries[shard.entry].name;
    const std::string entry = own.empty() ? std::to_string(shard.entry) : own;
    if (shard.is_master()) return fmt::format("{}.{}", kMastersKey, entry);
    const bool whole = stage.form == OptimizerStage::Form::kWhole;
    return fmt::format("{}.{}.{}", whole ? kStateKey : kBaseStateKey, entry, shard.state());
  }

  /// Validates that a state has its parameter's shape in the model's file, or a rank's rows of it. A state that is
  /// neither a moment nor master weights may be a scalar.
  void validate_shape(std::uint32_t pp_rank, const StateShard& shard, std::uint32_t local) const {
    const StoredTensor& stored = locals_.model().stored[local];
    const auto uncut = optimizer_.uncut.find(stored.name);
    const Dims in_model = uncut == optimizer_.uncut.end() ? stored.file_shape() : uncut->second;
    const OptimizerFiles& files = optimizer_.files;
    const OptimizerStage& stage = files.stages[pp_rank];
    if (!shard.has_rows() && (in_model.empty() || !(shard.is_master() || is_moment(shard.state())))) return;
    // The rows of ZeRO-1 were compared with the entry's shape.
    const Dims& whole =
        stage.form == OptimizerStage::Form::kWhole ? shard.tensor.shape : *stage.entries[shard.entry].shape;
    if (shard.has_rows() && whole == in_model) return;
    const std::uint64_t ranks = share_of_rows(files, stage, shard.entry, shard.rank % files.dp).count;
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("{} of {} has the shape {}, but its parameter {} has {} in the model's file{}", shard.state(),
                    stage.name_of(shard.entry), to_string(shard.tensor.shape), printable(stored.name.text()),
                    to_string(in_model), ranks > 1 ? fmt::format(", shared by {} data-parallel ranks", ranks) : ""))
        .in(files.path_of(pp_rank, shard.rank))
        .hint("the optimizer's files and the model's come from different checkpoints");
  }

  const ShardedOptimizer& optimizer_;
  const LocalTensors& locals_;
};

std::uint32_t add_part(SourceMap& map, const StatePart& part) {
  const std::uint32_t index = map.add_stored(part.shard->tensor, 0);
  map.stored[index].name = part.name;
  return index;
}

/// Adds tensors that are shared by rows to `map`, without rows that the model's map leaves out. `state` converts the
/// model's logical tensors to those of the state.
void add_shared(SourceMap& map, const SourceMap& model, const std::vector<StatePart>& parts,
                const ShardedOptimizer& optimizer,
                const std::function<LogicalTensor(const LogicalTensor&, DType)>& state,
                TensorRole role = TensorRole::kState) {
  std::map<DType, std::vector<std::vector<RowShard>>> by_dtype;
  for (const StatePart& part : parts) {
    if (!part.shard->has_rows()) continue;
    auto& shards = by_dtype[part.shard->tensor.dtype];
    shards.resize(model.stored.size());
    const StoredTensor& local = model.stored[part.local];
    const std::uint32_t index = add_part(map, part);
    if (optimizer.uncut.count(local.name) > 0) {
      const std::uint64_t rows = local.file_shape()[0], begin = std::min(rows, part.shard->begin_row);
      map.stored[index].shape[0] = std::min(map.stored[index].shape[0], rows - begin);
    }
    shards[part.local].push_back({index, part.shard->begin_row});
  }
  for (auto& [dtype, shards] : by_dtype) {
    const DType own = dtype;
    for (auto& of : shards)
      std::stable_sort(of.begin(), of.end(),
                       [](const RowShard& a, const RowShard& b) { return a.begin_row < b.begin_row; });
    try {
      add_row_shards(
          map, model, shards, [&](const LogicalTensor& local) { return state(local, own); }, role);
    } catch (Error& error) {
      if (error.path().empty()) error.in(optimizer.files.folder);
      throw;
    }
  }
}

/// Returns the names of states that are tensors, in the order of first occurrence in the files, master weights last.
std::vector<std::string> state_names(const OptimizerFiles& files) {
  std::vector<std::string> names;
  std::unordered_set<std::string_view> seen;
  for (const OptimizerStage& stage : files.stages)
    for (const StateShard& shard : stage.of_rank(0))
      if (seen.insert(shard.state()).second) names.push_back(shard.state());
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name != kMasterState; });
  return names;
}

void refuse_incomplete(const OptimizerFiles& files) {
  if (files.incomplete.empty()) return;
  throw Error(ErrorKind::kUnsupported, "the optimizer's states cannot be restored: " + files.incomplete)
      .in(files.folder)
      .hint(files.incomplete_hint);
}

/// Validates that either all trained parameters have master weights, or none.
void refuse_partial_masters(const OptimizerFiles& files) {
  for (const OptimizerStage& stage : files.stages)
    if (const auto entry = stage.first_without_master())
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("has states of {}, but no master weights, unlike others", stage.name_of(*entry)))
          .in(stage.path)
          .hint("the file is damaged, or the run saved only some master weights: use the model's own weights");
}

/// Adds a note on states that some parameters of a group have and others do not.
void note_missing_states(const OptimizerFiles& files, Notes& notes) {
  if (files.has_names()) return;  // parameters without states are in no group
  std::set<std::string> missing;  // names of states
  std::vector<std::string> ids;
  for (const OptimizerStage& file : files.stages) {
    std::vector<std::set<std::string>> states(file.entries.size());
    for (std::uint32_t e = 0; e < states.size(); ++e)
      for (const auto& [name, value] : file.entries[e].numbers) states[e].insert(name);
    for (const StateShard& shard : file.of_rank(0))
      if (!shard.is_master()) states[shard.entry].insert(shard.state());
    for (const OptimizerFileGroup& group : file.groups) {
      std::set<std::string> names;
      for (std::uint32_t e = group.first; e < group.first + group.count; ++e)
        names.insert(states[e].begin(), states[e].end());
      for (std::uint32_t e = group.first; e < group.first + group.count; ++e) {
        if (states[e].size() == names.size()) continue;
        ids.push_back(fmt::format("{} in {}", file.name_of(e), file.path.filename().string()));
        std::set_difference(names.begin(), names.end(), states[e].begin(), states[e].end(),
                            std::inserter(missing, missing.end()));
      }
    }
  }
  if (ids.empty()) return;
  notes.missing(fmt::format("not all parameters of a group have {}: not {}",
                            list_names(std::vector(missing.begin(), missing.end())), list_names(ids)));
}

/// Converts an optimizer's states to tensors of the model's parameters.
class StatesMaker {
 public:
  StatesMaker(const ShardedOptimizer& optimizer, const SourceMap& model)
      : optimizer_(optimizer), model_(model), locals_(model, optimizer.files), parts_(optimizer, locals_) {}

  TrainingStates make() {
    for (const std::string& name : state_names(optimizer_.files)) add_state(name, parts_.collect(name));
    add_numbers();
    add_groups();
    return std::move(states_);
  }

 private:
  void add_state(const std::string& state, const std::vector<StatePart>& parts) {
    const auto path = static_cast<std::uint32_t>(states_.paths.size());
    states_.paths.push_back({"optimizer", "state", std::string(1, kParameterMark), state});
    add_shared(states_.map, model_, parts, optimizer_, [&](const LogicalTensor& local, DType dtype) {
      return LogicalTensor{optimizer_state_name(local.name, state), dtype, {}, {}, TensorRole::kState};
    });
    for (const StatePart& part : parts)
      if (!part.shard->has_rows()) add_number_tensor(state, part);
    const std::string prefix(kStatePrefix);
    for (std::size_t l = states_.of.size(); l < states_.map.logical.size(); ++l) {
      TrainingState& own = states_.of.emplace_back();
      const LogicalTensor& tensor = states_.map.logical[l];
      if (tensor.constant()) continue;
      const std::size_t size = tensor.name.size() - prefix.size() - 1 - state.size();
      own = {prefix, tensor.name.substr(prefix.size(), size), state, false, path};
    }
  }

  /// Adds a tensor without dims. If the parameter is fused, each of its parts gets the tensor.
  void add_number_tensor(const std::string& state, const StatePart& part) {
    for (const std::uint32_t logical : locals_.logical_of(part.local)) {
      const std::uint32_t stored = add_part(states_.map, part);
      states_.map.stored[stored].tied = model_.stored[part.local].tied;
      const std::uint32_t index = states_.map.add_logical({optimizer_state_name(model_.logical[logical].name, state),
                                                           part.shard->tensor.dtype,
                                                           {},
                                                           {},
                                                           TensorRole::kState},
                                                          optimizer_.files.folder);
      states_.map.pieces[index].push_back({stored, {}, {}});
    }
  }

  /// Returns the model's names of an entry's parameters.
  std::vector<std::string> parameters_of(std::uint32_t pp_rank, std::uint32_t entry) const {
    std::vector<std::string> names;
    const std::uint32_t tp = optimizer_.files.tp;
    for (std::uint32_t rank = 0; rank < optimizer_.files.ep * tp; ++rank) {
      const std::string& stored = optimizer_.names_of(pp_rank, rank / tp)[entry];
      for (const std::uint32_t local : locals_.find(pp_rank, rank / tp, rank % tp, stored))
        for (const std::uint32_t logical : locals_.logical_of(local)) {
          const std::string& name = model_.logical[logical].name;
          if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        }
    }
    return names;
  }

  void add_numbers() {
    std::map<std::pair<std::string, std::string>, const PlainValue*> seen;
    for (std::uint32_t pp_rank = 0; pp_rank < optimizer_.files.pp; ++pp_rank) {
      const OptimizerStage& file = optimizer_.files.stages[pp_rank];
      for (std::uint32_t e = 0; e < file.entries.size(); ++e)
        for (const auto& [state, value] : file.entries[e].numbers)
          for (const std::string& parameter : parameters_of(pp_rank, e)) {
            const auto [found, is_new] = seen.emplace(std::pair(parameter, state), &value);
            if (is_new)
              states_.numbers.push_back({parameter, state, value});
            else if (*found->second != value)
              throw Error(ErrorKind::kBadInput,
                          fmt::format("{} of {} is {}, but {} in the file of another stage", state, file.name_of(e),
                                      to_string(value), to_string(*found->second)))
                  .in(file.path)
                  .tensor(parameter);
          }
    }
  }

  void add_groups() {
    std::unordered_map<std::string, std::size_t> group_of;
    const auto& groups = optimizer_.files.stages.front().groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      // NxD splits each group into one of experts and one of all else.
      const std::size_t dense = optimizer_.files.stages.front().first_expert_group;
      const bool is_split = g >= dense && groups.size() == 2 * dense && groups[g].values == groups[g - dense].values;
      const std::size_t number = is_split ? g - dense : states_.groups.size();
      if (!is_split) states_.groups.emplace_back().values = groups[g].values;
      OptimizerGroup& group = states_.groups[number];
      for (std::uint32_t pp_rank = 0; pp_rank < optimizer_.files.pp; ++pp_rank) {
        const OptimizerStage& file = optimizer_.files.stages[pp_rank];
        const std::uint32_t first = file.groups[g].first;
        for (std::uint32_t e = first; e < first + file.groups[g].count; ++e)
          for (std::string& parameter : parameters_of(pp_rank, e)) {
            const auto [found, is_new] = group_of.emplace(parameter, number);
            if (!is_new && found->second != number)
              throw Error(ErrorKind::kBadInput, fmt::format("is in parameter groups {} and {}", found->second, number))
                  .in(file.path)
                  .tensor(parameter);
            if (is_new) group.parameters.push_back(std::move(parameter));
          }
      }
    }
  }

  const ShardedOptimizer& optimizer_;
  const SourceMap& model_;
  LocalTensors locals_;
  StateParts parts_;
  TrainingStates states_;
};

/// Whether a stage before `pp_rank` has the parameter.
bool is_of_earlier_stage(const SourceMap& model, const std::string& name, std::uint32_t pp_rank) {
  return std::any_of(model.stored.begin(), model.stored.end(), [&](const StoredTensor& tensor) {
    return model.files[tensor.file].pp_rank < pp_rank && tensor.name.text() == name;
  });
}

/// Whether a tensor is a buffer. Plans, and checkpoints without a model, do not declare it. Masks of attention have four
/// dims, [1, 1, n, n].
bool is_buffer(const TensorEntry& tensor) {
  const std::string& name = tensor.name;
  const bool is_mask = tensor.shape.size() == 4 && (name.ends_with(".attn.bias") || name.ends_with(".attention.bias"));
  return is_mask || is_attention_buffer(name) || name.ends_with(".inv_freq") ||
         describe(tensor.dtype).kind != DTypeClass::kFloat;
}

}  // namespace

std::vector<std::vector<std::string>> name_entries(const OptimizerFiles& files, const ShardedCheckpoint& shards,
                                                   const Checkpoint& checkpoint, const OptionValues& options) {
  std::vector<std::vector<LocalParameter>> parameters;
  std::unordered_set<std::string_view> untrained;
  if (checkpoint.model)
    for (const ModelParameter& parameter : checkpoint.model->parameters)
      if (!parameter.trained) untrained.insert(parameter.name);
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank) {
    std::unordered_set<std::string> tied;
    std::unordered_map<std::string, const StoredTensor*> own;
    for (const StoredTensor& tensor : checkpoint.map.stored)
      if (checkpoint.map.files[tensor.file].pp_rank == pp_rank) own.emplace(tensor.name.text(), &tensor);
    // An alias of a parameter in the same file is no parameter of the optimizer. An alias is one if it is alone in its
    // stage or next to a replica of an earlier stage's parameter.
    std::vector<TiedParameter> ties = tied_parameters(checkpoint.model);
    for (const TiedParameter& one : ties) {
      const auto second = own.find(one.name);
      const bool is_guess_refuted = second != own.end() && !second->second->tied;
      if (own.count(one.source) && !is_guess_refuted)
        tied.insert(is_of_earlier_stage(checkpoint.map, one.source, pp_rank) ? one.source : one.name);
    }
    for (std::uint32_t ep_rank = 0; ep_rank < shards.ep; ++ep_rank) {
      std::vector<LocalParameter>& of_rank = parameters.emplace_back();
      for (const TensorEntry& tensor : shards.files[pp_rank][std::size_t{ep_rank} * shards.tp].tensors) {
        const auto found = own.find(tensor.name);
        if (found == own.end() || untrained.count(tensor.name) || is_buffer(tensor) || tied.count(tensor.name))
          continue;
        if (!tensor.strides.empty())
          throw Error(ErrorKind::kUnsupported, "is not stored in C order: the order of its states is unknown")
              .in(checkpoint.map.files[found->second->file].path)
              .tensor(tensor.name)
              .hint("convert the model without its optimizer, or save contiguous weights");
        const auto uncut = shards.uncut.find(tensor.name);
        of_rank.push_back(
            {tensor.name, uncut == shards.uncut.end() ? tensor.shape : uncut->second, found->second->expert_parallel});
      }
    }
  }
  if (keeps_ids(options)) return names_by_id(files, parameters);
  if (files.has_names()) return stored_names(files, parameters);
  try {
    return names_of_entries(files, parameters, chosen_group_rule(options),
                            checkpoint.model ? checkpoint.model->family->model_type : checkpoint.model_type);
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kBadInput && !checkpoint.model && checkpoint.config.path.empty())
      error.hint(
          "set `config` to the model's config.json: without it, tied parameters and buffers cannot be identified");
    throw;
  }
}

ShardedOptimizer read_sharded_optimizer(Files& files, const fs::path& folder, const ShardedCheckpoint& shards,
                                        Checkpoint& checkpoint, const OptionValues& options) {
  std::optional<OptimizerFiles> read = read_optimizer(files, folder, shards);
  if (!read)
    throw Error(ErrorKind::kBadInput, "contains no optimizer files")
        .in(checkpoint.path)
        .hint("the directory was copied without its folder optim, or the run was saved without its optimizer");
  ShardedOptimizer optimizer{*std::move(read), {}, shards.uncut};
  checkpoint.notes.add(optimizer.files.notes);
  if (const std::set<std::string>& others = optimizer.files.others; !others.empty())
    checkpoint.notes.left_out(
        fmt::format("left out entries of the optimizer's files that are not states, groups or master weights: {}",
                    list_names(std::vector(others.begin(), others.end()))));
  note_missing_states(optimizer.files, checkpoint.notes);
  optimizer.names = name_entries(optimizer.files, shards, checkpoint, options);
  const auto first_file = static_cast<std::uint32_t>(checkpoint.map.files.size());
  for (OptimizerStage& stage : optimizer.files.stages)
    for (StateShard& shard : stage.shards) shard.tensor.file += first_file;
  checkpoint.map.files.insert(checkpoint.map.files.end(), optimizer.files.files.begin(), optimizer.files.files.end());
  return optimizer;
}

std::vector<StatePart> master_parts(const ShardedOptimizer& optimizer, const SourceMap& model) {
  refuse_incomplete(optimizer.files);
  const LocalTensors locals(model, optimizer.files);
  return StateParts(optimizer, locals).collect(kMasterState);
}

TrainingStates sharded_states(const ShardedOptimizer& optimizer, const SourceMap& model) {
  refuse_incomplete(optimizer.files);
  return StatesMaker(optimizer, model).make();
}

TrainingStates states_by_id(const ShardedOptimizer& optimizer) {
  auto locals = std::make_shared<SourceMap>(local_tensors_by_id(optimizer.files));
  TrainingStates states = sharded_states(optimizer, *locals);
  states.locals = std::move(locals);
  return states;
}

std::size_t take_master_weights(const ShardedOptimizer& optimizer, SourceMap& model, MasterUse use) {
  refuse_incomplete(optimizer.files);
  if (!optimizer.files.has_masters)
    throw Error(ErrorKind::kBadInput, "contains no master weights")
        .in(optimizer.files.folder)
        .hint("use the model's own weights: `weights` model");
  refuse_partial_masters(optimizer.files);
  const SourceMap local = model;
  const LocalTensors locals(local, optimizer.files);
  std::vector<StatePart> parts = StateParts(optimizer, locals).collect(kMasterState);
  for (StatePart& part : parts) part.name = local.stored[part.local].name;
  std::vector<bool> used(model.stored.size(), true);
  for (const StatePart& part : parts) {
    used[part.local] = false;  // even if it has only padding
    for (const std::uint32_t l : locals.logical_of(part.local)) {
      LogicalTensor& tensor = model.logical[l];
      if (!model.pieces[l].empty()) {
        for (const Piece& piece : model.pieces[l]) used[piece.stored] = false;
        model.pieces[l].clear();
        const DType wanted = use.as_model ? tensor.dtype : DType::kF32;
        const DType dtype = tensor.dtype = part.shard->tensor.dtype;
        const bool casts = (use.as_model || dtype == DType::kF64) && wanted != dtype && can_cast(dtype, wanted);
        tensor.model_dtype = casts ? std::optional(wanted) : std::nullopt;
      }
    }
  }
  std::size_t others = 0;
  for (std::size_t l = 0; l < model.logical.size(); ++l) {
    if (model.logical[l].constant() || model.pieces[l].empty()) continue;
    ++others;
    if (!use.only_source) continue;
    throw Error(ErrorKind::kBadInput, "is neither in the model's files nor in the optimizer's master weights")
        .in(optimizer.files.folder)
        .tensor(model.logical[l].name);
  }
  add_shared(
      model, local, parts, optimizer,
      [&](const LogicalTensor& logical, DType) { return model.logical[*model.find_logical(logical.name)]; },
      TensorRole::kParameter);
  used.resize(model.stored.size(), true);
  model.keep_stored(used);
  return others;
}

}  // namespace reshard
