#include "reshard/layouts/optimizer/optimizer_dcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/dcp/dcp_chunks.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/optimizer/row_shards.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/optimizer_keys.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateBegins = "base_state.";
constexpr NumberedName kStateRanks("[|pp-{pp:4}][|tp-{tp:4}]", UINT32_MAX - 1);
constexpr std::string_view kInGroups = "param_groups.";
constexpr const char* kDamaged = "files of several saves are mixed, or the save is damaged: use another checkpoint";
constexpr const char* kOtherCheckpoint = "the optimizer and the model come from different checkpoints";

class DcpOptimizerReader {
 public:
  DcpOptimizerReader(Files& files, const fs::path& folder, const ShardedCheckpoint& shards)
      : files_(files), folder_(folder) {
    of_.folder = folder;
    of_.tp = shards.tp;
    of_.pp = shards.pp;
    of_.ep = shards.ep;
    if (!shards.files.empty() && !shards.files.front().empty())
      most_parameters_ = shards.files.front().front().tensors.size();
  }

  OptimizerFiles read() {
    if (of_.ep > 1)
      throw Error(ErrorKind::kUnsupported,
                  "contains an optimizer saved through torch.distributed.checkpoint, next to a model with "
                  "expert-parallel ranks")
          .in(folder_)
          .hint("leave out `with-optimizer`");
    read_metadata();
    stages_.resize(of_.pp);
    for (const DcpTensor& tensor : metadata_.all.tensors) sort_in(tensor);
    for (const DcpBytes& object : metadata_.all.bytes) sort_in(object);
    if (wanted_.size() == group_objects_.size())
      throw bad("contains no optimizer states (base_state.…)")
          .hint("it is another kind of checkpoint, or was saved before the first step");
    for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank) validate_stage(pp_rank);
    find();
    make_stages();
    read_groups();
    return std::move(of_);
  }

 private:
  /// A state of one parameter on one stage: a scalar, or the local tensor of each tensor-parallel rank that stores it.
  struct State {
    std::string name;
    std::map<std::uint32_t, std::size_t> by_tp_rank;  // into found_
    bool is_number = false;                           // no dims, or a Python value
    bool has_rank = false;                            // its entries' names include the tensor-parallel rank
  };
  struct Parameter {
    std::string name;
    std::vector<State> states;
    const DcpTensor* shaped = nullptr;  // the first tensor that has the local tensor's shape
  };
  struct Stage {
    std::vector<Parameter> parameters;
    std::map<std::string, std::size_t, std::less<>> by_name;
  };
  /// An entry to be located in the files: a tensor or an object; the other pointer is null.
  struct Wanted {
    const DcpTensor* tensor;
    const DcpBytes* object;
    std::vector<std::size_t> shards = {};  // for a local tensor: its chunks by data-parallel rank
  };
  /// A scalar, whose name does not include its stage.
  struct Number {
    DcpStateKey key;
    std::size_t wanted;
  };

  Error bad(const std::string& message) const {
    return Error(ErrorKind::kBadInput, message).in(metadata_.where).hint(kDamaged);
  }
  Error bad(const DcpTensor& tensor, const std::string& message) const { return bad(message).tensor(tensor.name); }

  /// NxD lists the parameters of the rank that writes `.metadata` for all stages, so the entries of other stages are
  /// not listed.
  void read_metadata() {
    try {
      metadata_ = read_dcp_directory(files_, folder_, DcpPaths::kLeave, of_.notes);
    } catch (Error& error) {
      if (of_.pp > 1 && error.kind() == ErrorKind::kBadInput)
        error.hint(
            "with several pipeline ranks, NxD (0.18 at least) writes the parameters of the first stage into .metadata "
            "for every stage, which makes it unloadable: save without use_zero1_dcp");
      throw;
    }
  }

  void sort_in(const DcpTensor& tensor) {
    const auto key = parse_dcp_state_key(tensor.name);
    if (!key)
      throw bad(tensor, tensor.name.starts_with(kStateBegins)
                            ? "is not the name of a state: base_state.PARAMETER.STATE|pp-0000|tp-0000 is expected"
                            : "is a tensor, but not a parameter's state (base_state.…)")
          .hint("the directory contains something other than an optimizer that NxD saved");
    wanted_.push_back({&tensor, nullptr});
    if (tensor.shape.empty()) {
      numbers_.push_back({*key, wanted_.size() - 1});
      return;
    }
    const std::uint32_t pp_rank = key->pp_rank.value_or(0), tp_rank = key->tp_rank.value_or(0);
    if (pp_rank >= of_.pp || tp_rank >= of_.tp)
      throw bad(tensor, fmt::format("belongs to tp rank {}, pp rank {}, but the model has tp {} × pp {} ranks", tp_rank,
                                    pp_rank, of_.tp, of_.pp))
          .hint(kOtherCheckpoint);
    if (of_.pp > 1 && !key->pp_rank)
      throw bad(tensor, fmt::format("does not name its pipeline rank, but there are {}", of_.pp))
          .hint(kOtherCheckpoint);
    Parameter& parameter = parameter_of(pp_rank, key->parameter);
    if (parameter.shaped == nullptr) parameter.shaped = &tensor;
    State& state = state_of(parameter, key->state);
    if (!state.by_tp_rank.empty() && state.has_rank != key->tp_rank.has_value())
      throw bad(tensor, "exists both for each tensor-parallel rank and for all of them");
    state.has_rank = key->tp_rank.has_value();
    if (!state.by_tp_rank.emplace(tp_rank, wanted_.size() - 1).second)
      throw bad(tensor, fmt::format("is a second state of tp rank {}, pp rank {}", tp_rank, pp_rank));
  }

  void sort_in(const DcpBytes& object) {
    const auto key = parse_dcp_state_key(object.name);
    const bool is_of_groups = object.name == kGroupsKey || object.name.starts_with(kInGroups);
    if (!key && !is_of_groups) return;  // e.g. shape_info, which is also known from the tensors
    wanted_.push_back({nullptr, &object});
    if (is_of_groups) {
      group_objects_.push_back(wanted_.size() - 1);
      return;
    }
    numbers_.push_back({*key, wanted_.size() - 1});
  }

  Parameter& parameter_of(std::uint32_t pp_rank, const std::string& name) {
    Stage& stage = stages_[pp_rank];
    const auto [found, is_new] = stage.by_name.emplace(name, stage.parameters.size());
    if (is_new) stage.parameters.push_back({name, {}});
    return stage.parameters[found->second];
  }

  static State& state_of(Parameter& parameter, const std::string& name) {
    const auto found = std::find_if(parameter.states.begin(), parameter.states.end(),
                                    [&](const State& state) { return state.name == name; });
    return found != parameter.states.end() ? *found : parameter.states.emplace_back(State{name, {}});
  }

  /// Assigns each scalar to the stages that have other states of its parameter.
  void place_numbers() {
    for (const Number& number : numbers_) {
      bool has_place = false;
      for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank) {
        if (stages_[pp_rank].by_name.count(number.key.parameter) == 0) continue;
        has_place = true;
        State& state = state_of(parameter_of(pp_rank, number.key.parameter), number.key.state);
        if (state.is_number || !state.by_tp_rank.empty()) throw bad("occurs twice").tensor(entry_of(number.wanted));
        state.is_number = true;
        state.by_tp_rank.emplace(0, number.wanted);
      }
      if (!has_place)
        throw bad("none of its parameter's states has the parameter's shape")
            .tensor(entry_of(number.wanted))
            .hint(kOtherCheckpoint);
    }
    numbers_.clear();
  }

  const std::string& entry_of(std::size_t wanted) const {
    return wanted_[wanted].tensor != nullptr ? wanted_[wanted].tensor->name : wanted_[wanted].object->name;
  }

  void validate_stage(std::uint32_t pp_rank) {
    if (pp_rank == 0) {
      place_numbers();
      count_ranks();
    }
    if (stages_[pp_rank].parameters.empty())
      throw bad(fmt::format("contains no states of pp rank {}, but the model has {} pipeline ranks", pp_rank, of_.pp))
          .hint(kOtherCheckpoint);
    for (const Parameter& parameter : stages_[pp_rank].parameters)
      for (const State& state : parameter.states) {
        if (state.is_number) continue;
        validate_tp_ranks(pp_rank, parameter, state);
        for (const auto& [tp_rank, wanted] : state.by_tp_rank)
          wanted_[wanted].shards = shards_of(*wanted_[wanted].tensor, parameter);
      }
  }

  void validate_tp_ranks(std::uint32_t pp_rank, const Parameter& parameter, const State& state) const {
    if (!state.has_rank) return;
    for (std::uint32_t tp_rank = 0; tp_rank < of_.tp; ++tp_rank)
      if (state.by_tp_rank.count(tp_rank) == 0)
        throw bad(fmt::format("has no {} of tp rank {}, pp rank {}, but of {} of {} tensor-parallel ranks", state.name,
                              tp_rank, pp_rank, state.by_tp_rank.size(), of_.tp))
            .tensor(parameter.name)
            .hint(kOtherCheckpoint);
  }

  /// Sets the number of data-parallel ranks to the largest number of chunks of any tensor.
  void count_ranks() {
    for (const Wanted& one : wanted_)
      if (one.tensor != nullptr) of_.dp = std::max(of_.dp, static_cast<std::uint32_t>(one.tensor->chunks.size()));
  }

  /// Returns a tensor's chunks by data-parallel rank, after validating that each has the rows of its rank.
  std::vector<std::size_t> shards_of(const DcpTensor& tensor, const Parameter& parameter) const {
    if (tensor.shape != parameter.shaped->shape)
      throw bad(tensor, fmt::format("has the shape {}, but {} has {}", to_string(tensor.shape), parameter.shaped->name,
                                    to_string(parameter.shaped->shape)));
    if (tensor.chunks.size() != of_.dp)
      throw bad(tensor, fmt::format("has {} chunk{}, but others have those of {} data-parallel ranks",
                                    tensor.chunks.size(), tensor.chunks.size() == 1 ? "" : "s", of_.dp))
          .hint("a data-parallel rank did not finish its save, or the files are of several");
    std::vector<std::size_t> order(tensor.chunks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return tensor.chunks[a].box.begin[0] < tensor.chunks[b].box.begin[0];
    });
    for (std::uint32_t dp_rank = 0; dp_rank < of_.dp; ++dp_rank) {
      const Box& box = tensor.chunks[order[dp_rank]].box;
      const RowShare share = row_share(tensor.shape[0], of_.dp, dp_rank);
      Box expected = whole(tensor.shape);
      expected.begin[0] = share.begin_row;
      expected.size[0] = share.rows;
      if (box.begin == expected.begin && box.size == expected.size) continue;
      throw bad(tensor, fmt::format("has a chunk of {} at {}, but data-parallel rank {} of {} has {} at {}",
                                    to_string(box.size), to_string(box.begin), dp_rank, of_.dp,
                                    to_string(expected.size), to_string(expected.begin)))
          .hint("it is not an optimizer that NxD shards by rows");
    }
    return order;
  }

  void find() {
    DcpChunkFinder finder(files_, folder_, metadata_, of_.files, of_.notes);
    for (const Wanted& one : wanted_)
      one.tensor != nullptr ? finder.add(*one.tensor, one.tensor->name) : finder.add({one.object}, one.object->name);
    found_ = finder.find();
    for (const SourceFile& file : of_.files)
      if (file.frame)
        throw Error(ErrorKind::kUnsupported, "has compressed items, which NxD does not write")
            .in(file.path)
            .hint("save the checkpoint without compression, or leave out `with-optimizer`");
    of_.file_count = of_.files.size();
    of_.paths = {metadata_.where};
  }

  void make_stages() {
    for (const Stage& from : stages_) {
      OptimizerStage& stage = of_.stages.emplace_back();
      stage.path = metadata_.where;
      for (const Parameter& parameter : from.parameters) {
        OptimizerEntry& entry = stage.entries.emplace_back();
        entry.name = parameter.name;
        entry.shape = parameter.shaped->shape;
        for (const State& state : parameter.states)
          if (found_[state.by_tp_rank.begin()->second].role == TensorRole::kObject)
            entry.numbers.emplace_back(state.name, value_of(state.by_tp_rank.begin()->second));
          else
            add_shards(state, entry.tensors.emplace_back());
      }
    }
  }

  void add_shards(const State& state, OptimizerState& made) const {
    for (const auto& [tp_rank, wanted] : state.by_tp_rank) {
      const ChunkedTensor& found = found_[wanted];
      for (const std::size_t number : state.is_number ? std::vector<std::size_t>{0} : wanted_[wanted].shards) {
        const ChunkedTensor::Chunk& chunk = found.chunks[number];
        made.shards.push_back({state.name, found.dtype, chunk.box.size, chunk.offset_bytes,
                               num_bytes(found.dtype, chunk.box.size).value_or(0), chunk.file, chunk.strides});
      }
    }
  }

  PlainValue value_of(std::size_t wanted) {
    const ChunkedTensor& found = found_[wanted];
    const ChunkedTensor::Chunk& chunk = found.chunks.front();
    if (!opened_) opened_.emplace(files_, of_.files);
    return read_dcp_object(opened_->at(chunk.file), chunk.offset_bytes, found.shape.empty() ? 0 : found.shape[0],
                           found.entry, found.entry, of_.files[chunk.file].path);
  }

  /// Reads the groups: one object, or one per hyperparameter, as torch 2.4 and later flatten them.
  void read_groups() {
    std::vector<GroupObject> objects;
    for (const std::size_t number : group_objects_) {
      const std::string& name = wanted_[number].object->name;
      objects.push_back(
          {name, metadata_.where, name.substr(std::min(kInGroups.size(), name.size())), value_of(number)});
    }
    std::vector<SavedGroup> groups;
    try {
      groups = saved_groups(objects);
    } catch (Error& error) {
      throw error.hint(kDamaged);
    }
    take_groups(std::move(groups));
  }

  void take_groups(std::vector<SavedGroup> groups) {
    if (groups.empty()) throw bad("contains no \"param_groups\"");
    std::optional<std::size_t> with_parameters;
    std::vector<OptimizerFileGroup> all;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      all.push_back({std::move(groups[g].values)});
      if (groups[g].parameters.empty()) continue;
      if (with_parameters)
        throw bad(
            fmt::format(
                "parameter groups {} and {} both have parameters, but the names of states belong to only one group",
                *with_parameters, g))
            .hint("NxD confuses the parameters of several groups in this form; it is damaged");
      with_parameters = g;
    }
    if (!with_parameters) throw bad("its parameter groups are empty, but it contains states");
    for (OptimizerStage& stage : of_.stages) {
      // With several stages, the groups may come from any of them.
      if (of_.pp == 1) add_untrained(stage, groups[*with_parameters].parameters.size());
      stage.groups = all;
      stage.groups[*with_parameters].count = static_cast<std::uint32_t>(stage.entries.size());
      stage.first_expert_group = static_cast<std::uint32_t>(all.size());
    }
  }

  /// Adds the parameters without states, which have no names here.
  void add_untrained(OptimizerStage& stage, std::size_t listed) const {
    if (listed < stage.entries.size() || listed > std::max(most_parameters_, stage.entries.size()))
      throw bad(
          fmt::format("lists {} parameters in its groups, but contains states of {}, and the model has {} tensors",
                      listed, stage.entries.size(), most_parameters_))
          .hint(kOtherCheckpoint);
    stage.entries.resize(listed);
  }

  Files& files_;
  const fs::path& folder_;
  std::size_t most_parameters_ = 0;  // in the first stage of the model
  DcpDirectory metadata_;
  std::vector<Wanted> wanted_;
  std::vector<ChunkedTensor> found_;  // located entries, parallel to wanted_
  std::vector<Number> numbers_;
  std::vector<std::size_t> group_objects_;  // into wanted_
  std::vector<Stage> stages_;
  std::optional<OpenedFiles> opened_;  // opens OptimizerFiles::files, once they are located
  OptimizerFiles of_;
};

}  // namespace

std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name) {
  if (!name.starts_with(kStateBegins)) return std::nullopt;
  name.remove_prefix(kStateBegins.size());
  const std::string_view text_of_ranks = name.substr(std::min(name.find('|'), name.size()));
  const auto ranks = kStateRanks.parse_printed(text_of_ranks);
  if (!ranks) return std::nullopt;
  name.remove_suffix(text_of_ranks.size());
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  const auto number = [&](std::string_view key) -> std::optional<std::uint32_t> {
    const auto found = ranks->find(key);
    return found == ranks->end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found->second));
  };
  return DcpStateKey{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1)), number("pp"), number("tp")};
}

OptimizerFiles read_optimizer_dcp(Files& files, const fs::path& folder, const ShardedCheckpoint& shards) {
  return DcpOptimizerReader(files, folder, shards).read();
}

}  // namespace reshard
