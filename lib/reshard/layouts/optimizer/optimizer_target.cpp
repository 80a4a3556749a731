#include "reshard/layouts/optimizer/optimizer_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/pickle/saved_value.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/states/numbered_parameters.h"
#include "reshard/layouts/states/optimizer_keys.h"
#include "reshard/layouts/states/row_shards.h"
#include "reshard/tensor/recipes/same.h"

namespace reshard {
namespace {

/// A tensor of a rank's file and the state that it contains.
struct Slot {
  StoredTensor tensor;  // its name, dtype and shape
  std::string state;
  const NumberedState* scalar = nullptr;  // a scalar, which all ranks have; otherwise rows of `local`
  std::uint32_t local = 0;                // index of the stored tensor in the model's map
};

/// The contents of one rank's file, which are equal on all data-parallel ranks.
struct RankContent {
  std::shared_ptr<const SavedValue> structure;
  std::vector<Slot> slots;  // in the order of the structure
};

SavedValue plain_list(const Dims& dims) {
  PlainValue::List list;
  for (const std::uint64_t size : dims) list.push_back({static_cast<std::int64_t>(size)});
  return {PlainValue{std::move(list)}};
}

class OptimizerWriter {
 public:
  OptimizerWriter(TargetPlan& plan, const TrainingStates& states, const OptimizerTarget& target)
      : plan_(plan),
        local_(states.has_names() ? std::make_shared<const TargetMap>(plan.map)
                                  : std::shared_ptr<const TensorMap>(states.locals)),
        states_(states),
        target_(target),
        parameters_(*local_, states, target.groups) {}

  void run(const std::vector<StagePlan>& stages) {
    parameters_.validate_groups(stages);
    using StageOfExperts = std::pair<std::uint32_t, std::uint32_t>;                       // pp_rank, ep_rank
    std::map<StageOfExperts, std::map<std::uint32_t, std::vector<std::uint32_t>>> ranks;  // stored tensors by tp rank
    for (std::uint32_t s = 0; s < local_->stored.size(); ++s) {
      const MapFile& file = local_->file_of(local_->stored[s]);
      // What is no expert has the states of the first expert-parallel rank.
      for (std::uint32_t ep_rank = 0; ep_rank < target_.ep; ++ep_rank)
        if (file.ep_rank == (local_->stored[s].expert_parallel ? ep_rank : 0))
          ranks[{file.pp_rank, ep_rank}][file.tp_rank].push_back(s);
    }
    for (const auto& [place, stored_of] : ranks) {
      std::vector<std::uint32_t> stage;
      for (const auto& [tp_rank, stored] : stored_of) stage.insert(stage.end(), stored.begin(), stored.end());
      const std::vector<NumberedParameter> parameters = parameters_.of_stage(stage, stages, place.first);
      for (const auto& [tp_rank, stored] : stored_of) add_rank(tp_rank, place.first, place.second, parameters, stored);
      note_same(parameters);
    }
    add_pieces();
    leave_rest();
  }

 private:
  void add_rank(std::uint32_t tp_rank, std::uint32_t pp_rank, std::uint32_t ep_rank,
                const std::vector<NumberedParameter>& parameters, const std::vector<std::uint32_t>& stored) {
    const RankContent content = content_of(parameters, stored);
    for (std::uint32_t dp_rank = ep_rank; dp_rank < target_.dp; dp_rank += target_.ep) {
      TargetContainer container;
      container.format = target_.format;
      container.path = target_.folder / (rank_name({tp_rank, pp_rank, dp_rank}, true) + ".pt");
      container.tp_rank = tp_rank;
      container.pp_rank = pp_rank;
      container.structure = content.structure;
      for (const Slot& slot : content.slots) container.tensors.push_back({slot.tensor, {}});
      const std::vector<std::uint32_t> indices = add_target_container(plan_.map, std::move(container));
      for (std::size_t i = 0; i < indices.size(); ++i) place(content.slots[i], indices[i], dp_rank);
    }
  }

  void place(const Slot& slot, std::uint32_t stored, std::uint32_t dp_rank) {
    if (slot.scalar != nullptr) {
      const LogicalTensor& source = states_.map.logical[slot.scalar->parts.front()];
      const std::uint32_t index = plan_.map.add_logical(state_tensor(source), {});
      const Dims& shape = source.shape;
      plan_.map.pieces[index].push_back({stored, whole(shape), Dims(shape.size(), 0)});
      return;
    }
    auto& shards = shards_[slot.state];
    if (shards.empty()) shards.resize(local_->stored.size());
    const Dims in_file = local_->stored[slot.local].file_shape();
    const std::uint64_t count = shards_of(slot.local), rows = in_file.empty() ? 0 : rows_per_shard(in_file[0], count);
    shards[slot.local].push_back({stored, rows * (dp_rank / (target_.dp / count))});
  }

  /// Returns the number of data-parallel ranks that share a tensor of the model's map.
  std::uint64_t shards_of(std::uint32_t local) const {
    return local_->stored[local].expert_parallel ? target_.dp / target_.ep : target_.dp;
  }

  /// Returns the contents of every data-parallel rank's file of a rank, whose model's tensors are `stored`.
  RankContent content_of(const std::vector<NumberedParameter>& parameters,
                         const std::vector<std::uint32_t>& stored) const {
    std::unordered_map<std::string_view, std::uint32_t> by_name;
    for (const std::uint32_t s : stored) by_name.emplace(local_->stored[s].name.text(), s);
    RankContent content;
    SavedValue::Dict base_state, shape_info, master;
    const auto first_expert =
        std::find_if(parameters.begin(), parameters.end(), [&](const auto& one) { return is_expert(one); });
    const std::int64_t dense = first_expert - parameters.begin();
    std::int64_t state_offset = 1, shape_offset = std::max<std::int64_t>(1, dense);  // 1 if a dict has no other ids
    for (auto one = parameters.begin(); one != first_expert; ++one)
      if (!one->states.empty()) state_offset = std::int64_t{one->id} + 1;
    const auto add = [&](const NumberedParameter& parameter, std::uint32_t s, std::string name,
                         const std::string& state, DType dtype, const NumberedState* scalar) -> SavedValue {
      const Dims shape = scalar != nullptr ? states_.map.logical[scalar->parts.front()].shape
                                           : row_shard_shape(local_->stored[s].file_shape(), shards_of(s));
      if (!num_bytes(dtype, shape))
        throw Error(ErrorKind::kUsage, "its rows cannot be shared by these ranks").tensor(parameter.name);
      StoredTensor tensor{std::move(name), dtype, shape};
      content.slots.push_back({std::move(tensor), state, scalar, s});
      return {SavedValue::Tensor{static_cast<std::uint32_t>(content.slots.size() - 1)}};
    };
    for (const NumberedParameter& parameter : parameters) {
      const std::uint32_t s = by_name.at(parameter.stored_name);
      const std::int64_t id = parameter.id;
      SavedValue::Dict states;
      for (const NumberedState& state : parameter.states) {
        if (state.number) {
          states.push_back({state.name, {*state.number}});
          continue;
        }
        states.push_back(
            {state.name, add(parameter, s, fmt::format("{}.{}.{}", kBaseStateKey, parameter.id, state.name), state.name,
                             state.dtype, state.is_scalar ? &state : nullptr)});
      }
      const auto key = [&](std::int64_t offset) { return is_expert(parameter) ? id - dense + offset : id; };
      if (!states.empty()) base_state.push_back({key(state_offset), {std::move(states)}});
      shape_info.push_back({key(shape_offset), plain_list(local_->stored[s].file_shape())});
    }
    for (const NumberedParameter& parameter : parameters) {
      if (has_expert_groups() || (!states_.has_names() && !parameter.has_master))
        continue;  // the weights to make them from are unknown
      master.push_back({std::int64_t{parameter.id}, add(parameter, by_name.at(parameter.stored_name),
                                                        fmt::format("{}.{}", kMastersKey, parameter.id), kMasterState,
                                                        parameter.master_dtype, nullptr)});
    }
    SavedValue::Dict file;
    const auto number = [](std::int64_t value) { return SavedValue{PlainValue{value}}; };
    if (has_expert_groups()) {
      file.push_back({kIdOffset, number(1)});  // "state" is empty
      file.push_back({kGroupOffset, number(static_cast<std::int64_t>(target_.groups.size()))});
      file.push_back({kStateOffset, number(state_offset)});
      file.push_back({kShapeOffset, number(shape_offset)});
      file.push_back({kGroupsKey, {PlainValue{param_groups(parameters, dense)}}});
    }
    file.push_back({kStateKey, {SavedValue::Dict{}}});
    if (!has_expert_groups()) file.push_back({kGroupsKey, {PlainValue{param_groups(parameters, dense)}}});
    file.push_back({kBaseStateKey, {std::move(base_state)}});
    file.push_back({kShapesKey, {std::move(shape_info)}});
    if (!has_expert_groups() && (states_.has_names() || !master.empty()))
      file.push_back({kMastersKey, {std::move(master)}});
    content.structure = std::make_shared<const SavedValue>(SavedValue{std::move(file)});
    return content;
  }

  bool has_expert_groups() const { return target_.ep > 1; }
  bool is_expert(const NumberedParameter& parameter) const { return parameter.group >= target_.groups.size(); }

  /// \param dense  the number of parameters that are no experts; the ids of experts begin with 0 again.
  PlainValue::List param_groups(const std::vector<NumberedParameter>& parameters, std::int64_t dense) const {
    PlainValue::List groups;
    for (std::uint32_t g = 0; g < target_.groups.size() * (has_expert_groups() ? 2 : 1); ++g) {
      PlainValue::Dict values = target_.groups[g % target_.groups.size()].values;
      PlainValue::List ids;
      for (const NumberedParameter& parameter : parameters)
        if (parameter.group == g) ids.push_back({parameter.id - (is_expert(parameter) ? dense : 0)});
      values.emplace_back("params", PlainValue{std::move(ids)});
      groups.push_back({std::move(values)});
    }
    return groups;
  }

  /// Records that parameters that are fused into one must have the same scalar states, such as their step.
  void note_same(const std::vector<NumberedParameter>& parameters) {
    for (const NumberedParameter& parameter : parameters)
      for (const NumberedState& state : parameter.states)
        for (std::size_t i = 1; state.is_scalar && i < state.parts.size(); ++i)
          plan_.map.same.emplace_back(states_.map.logical[state.parts[i]].name,
                                      states_.map.logical[state.parts.front()].name);
  }

  static LogicalTensor state_tensor(LogicalTensor tensor) {
    tensor.role = TensorRole::kState;
    return tensor;
  }

  void add_pieces() {
    for (auto& [state, shards] : shards_) {
      for (std::vector<RowShard>& of_tensor : shards)
        std::sort(of_tensor.begin(), of_tensor.end(),
                  [](const RowShard& a, const RowShard& b) { return a.begin_row < b.begin_row; });
      add_row_shards(plan_.map, *local_, shards, [&, name = state](const LogicalTensor& parameter) {
        if (const auto known = parameters_.state_of(parameter.name, name)) return states_.map.logical[*known];
        LogicalTensor master = parameter;  // made from the weights
        master.name = parameters_.master_name(parameter.name);
        master.dtype = parameters_.master_dtype(parameter.name);
        master.role = TensorRole::kState;
        if (copied_.insert(parameter.name).second) {
          LogicalTensor& copy = plan_.derived.emplace_back(master);
          copy.computed = std::make_shared<const Computed>(Computed{same_recipe(), {parameter.name}});
        }
        return master;
      });
    }
  }

  /// What has no place in these files: schedulers, random numbers and the like.
  void leave_rest() {
    std::vector<std::string> left;
    for (std::size_t i = 0; i < states_.of.size(); ++i) {
      const bool has_place = parameters_.is_placed(i) && !(has_expert_groups() && states_.state(i) == kMasterState);
      if (states_.of[i].left_out || states_.map.logical[i].constant() || has_place) continue;
      const std::string& name = states_.map.logical[i].name;
      if (is_of_group(name))  // which was read as a value
        plan_.without_place.push_back(name);
      else
        left.push_back(name);
    }
    if (!left.empty())
      plan_.notes
          .left_out(fmt::format("{} training state {} no place in these files: {}", left.size(),
                                left.size() == 1 ? "entry has" : "entries have", list_names(left)))
          .of(left);
    for (std::string& name : left) plan_.without_place.push_back(std::move(name));
  }

  TargetPlan& plan_;
  const std::shared_ptr<const TensorMap> local_;  // the model's map, or that of the ids' local tensors
  const TrainingStates& states_;
  const OptimizerTarget& target_;
  NumberedParameters parameters_;
  std::map<std::string, std::vector<std::vector<RowShard>>> shards_;  // by state, then by stored tensor of local_
  std::set<std::string> copied_;  // parameters whose weights are their master weights
};

}  // namespace

void add_optimizer_files(TargetPlan& plan, const TrainingStates& states, const std::vector<StagePlan>& stages,
                         const OptimizerTarget& target) {
  OptimizerWriter(plan, states, target).run(stages);
}

}  // namespace reshard
