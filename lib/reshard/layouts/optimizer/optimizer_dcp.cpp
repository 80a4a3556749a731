#include "reshard/layouts/optimizer/optimizer_dcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/dcp/dcp_chunks.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/map/row_shards.h"
#include "reshard/layouts/optimizer/optimizer_dcp_names.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/optimizer_keys.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInGroups = "param_groups.";
constexpr const char* kDamaged = "files of several saves are mixed, or the save is damaged: take another checkpoint";
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
                  "holds the optimizer through torch.distributed.checkpoint, beside a model "
                  "of expert-parallel ranks")
          .in(folder_)
          .hint("do without `with-optimizer`");
    read_metadata();
    stages_.resize(of_.pp);
    for (const DcpTensor& tensor : metadata_.all.tensors) sort_in(tensor);
    for (const DcpBytes& object : metadata_.all.bytes) sort_in(object);
    if (!has_states_)
      throw bad("holds no states of an optimizer (base_state.…)")
          .hint("it is a checkpoint of something else, or was saved before the first step");
    for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank) validate_stage(pp_rank);
    find();
    make_files();
    read_groups();
    return std::move(of_);
  }

 private:
  /// A state of one parameter on one stage: a number, or the local tensor of each tensor-parallel rank that stores it.
  struct State {
    std::string name;
    std::map<std::uint32_t, std::size_t> by_tp_rank;  // into found_
    bool is_number = false;                           // 0 dims, or a value of Python
    bool has_rank = false;                            // its entries are called by tensor-parallel rank
  };
  struct Parameter {
    std::string name;
    std::vector<State> states;
    const DcpTensor* shaped = nullptr;  // the first whose shape is the local tensor's
  };
  struct Stage {
    std::vector<Parameter> parameters;
    std::map<std::string, std::size_t, std::less<>> by_name;
  };
  /// An entry that the files are searched for; one of the two.
  struct Wanted {
    const DcpTensor* tensor;
    const DcpBytes* object;
    std::vector<std::size_t> shards = {};  // of a local tensor: its chunks by data-parallel rank
  };
  /// A number, whose name does not say its stage.
  struct Number {
    DcpStateKey key;
    std::size_t wanted;
  };

  Error bad(const std::string& message) const {
    return Error(ErrorKind::kBadInput, message).in(metadata_.where).hint(kDamaged);
  }
  Error bad(const DcpTensor& tensor, const std::string& message) const { return bad(message).tensor(tensor.name); }

  /// NxD lists the parameters of the rank that writes `.metadata` for all stages, and what other stages have saved is
  /// in no list.
  void read_metadata() {
    try {
      metadata_ = read_dcp_directory(files_, folder_, DcpPaths::kLeave, of_.notes);
    } catch (Error& error) {
      if (of_.pp > 1 && error.kind() == ErrorKind::kBadInput)
        error.hint(
            "with several pipeline ranks NxD (0.18 at least) puts the parameters of the first stage into .metadata for "
            "every stage, so that nobody can load it: save without use_zero1_dcp");
      throw;
    }
  }

  void sort_in(const DcpTensor& tensor) {
    const auto key = parse_dcp_state_key(tensor.name);
    if (!key)
      throw bad(tensor, is_dcp_state_name(tensor.name)
                            ? "is no name of a state: base_state.PARAMETER.STATE|pp-0000|tp-0000 is expected"
                            : "is a tensor, but no state of a parameter (base_state.…)")
          .hint("the directory holds something else than an optimizer that NxD saved");
    has_states_ = true;
    wanted_.push_back({&tensor, nullptr});
    if (tensor.shape.empty()) {
      numbers_.push_back({*key, wanted_.size() - 1});
      return;
    }
    const std::uint32_t pp_rank = key->pp_rank.value_or(0), tp_rank = key->tp_rank.value_or(0);
    if (pp_rank >= of_.pp || tp_rank >= of_.tp)
      throw bad(tensor, fmt::format("is of tp rank {}, pp rank {}, but the model has tp {} × pp {} ranks", tp_rank,
                                    pp_rank, of_.tp, of_.pp))
          .hint(kOtherCheckpoint);
    if (of_.pp > 1 && !key->pp_rank)
      throw bad(tensor, fmt::format("does not say of which of {} pipeline ranks it is", of_.pp)).hint(kOtherCheckpoint);
    Parameter& parameter = parameter_of(pp_rank, key->parameter);
    if (parameter.shaped == nullptr) parameter.shaped = &tensor;
    State& state = state_of(parameter, key->state);
    if (!state.by_tp_rank.empty() && state.has_rank != key->tp_rank.has_value())
      throw bad(tensor, "is there both for each tensor-parallel rank and for all of them");
    state.has_rank = key->tp_rank.has_value();
    if (!state.by_tp_rank.emplace(tp_rank, wanted_.size() - 1).second)
      throw bad(tensor, fmt::format("is a second state of tp rank {}, pp rank {}", tp_rank, pp_rank));
  }

  void sort_in(const DcpBytes& object) {
    const auto key = parse_dcp_state_key(object.name);
    const bool is_of_groups = object.name == kGroupsKey || object.name.starts_with(kInGroups);
    if (!key && !is_of_groups) return;  // shape_info, which the tensors say, too
    wanted_.push_back({nullptr, &object});
    if (is_of_groups) {
      group_objects_.push_back(wanted_.size() - 1);
      return;
    }
    has_states_ = true;
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

  /// Gives each number to the stages that have other states of its parameter.
  void place_numbers() {
    for (const Number& number : numbers_) {
      bool has_place = false;
      for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank) {
        if (stages_[pp_rank].by_name.count(number.key.parameter) == 0) continue;
        has_place = true;
        State& state = state_of(parameter_of(pp_rank, number.key.parameter), number.key.state);
        if (state.is_number || !state.by_tp_rank.empty()) throw bad("is there twice").tensor(entry_of(number.wanted));
        state.is_number = true;
        state.by_tp_rank.emplace(0, number.wanted);
      }
      if (!has_place)
        throw bad("its parameter has no state of its shape").tensor(entry_of(number.wanted)).hint(kOtherCheckpoint);
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
      throw bad(fmt::format("holds no states of pp rank {}, but the model has {} pipeline ranks", pp_rank, of_.pp))
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

  /// Data-parallel ranks: as many as any tensor has chunks.
  void count_ranks() {
    for (const Wanted& one : wanted_)
      if (one.tensor != nullptr) of_.dp = std::max(of_.dp, static_cast<std::uint32_t>(one.tensor->chunks.size()));
  }

  /// Its chunks by data-parallel rank, which have the rows that the numbers of rows and ranks give them.
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
          .hint("it is no optimizer that NxD shares by rows");
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
            .hint("save the checkpoint without compression, or do without `with-optimizer`");
    of_.file_count = of_.files.size();
  }

  void make_files() {
    for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank)
      for (std::uint32_t tp_rank = 0; tp_rank < of_.tp; ++tp_rank)
        for (std::uint32_t dp_rank = 0; dp_rank < of_.dp; ++dp_rank) {
          OptimizerFile& file = of_.all.emplace_back();
          file.path = metadata_.where;
          for (const Parameter& parameter : stages_[pp_rank].parameters) {
            OptimizerEntry& entry = file.entries.emplace_back();
            entry.name = parameter.name;
            for (const State& state : parameter.states) add_state(state, tp_rank, dp_rank, entry);
          }
        }
  }

  void add_state(const State& state, std::uint32_t tp_rank, std::uint32_t dp_rank, OptimizerEntry& entry) {
    const auto wanted = state.by_tp_rank.find(tp_rank);
    if (wanted == state.by_tp_rank.end() || (state.is_number && dp_rank > 0)) return;
    const ChunkedTensor& found = found_[wanted->second];
    if (found.role == TensorRole::kObject) {
      entry.numbers.emplace_back(state.name, value_of(wanted->second));
      return;
    }
    const DcpTensor& tensor = *wanted_[wanted->second].tensor;
    if (!state.is_number) entry.shape = tensor.shape;
    const ChunkedTensor::Chunk& chunk = found.chunks[state.is_number ? 0 : wanted_[wanted->second].shards[dp_rank]];
    entry.tensors.push_back({state.name, found.dtype, chunk.box.size, chunk.offset_bytes,
                             num_bytes(found.dtype, chunk.box.size).value_or(0), chunk.file, chunk.strides});
  }

  PlainValue value_of(std::size_t wanted) {
    const ChunkedTensor& found = found_[wanted];
    const ChunkedTensor::Chunk& chunk = found.chunks.front();
    const fs::path& path = of_.files[chunk.file].path;
    std::unique_ptr<Source>& source = sources_[chunk.file];
    if (!source) source = files_.open(path);
    const std::uint64_t bytes = found.shape.empty() ? 0 : found.shape[0];
    return read_dcp_object(*source, chunk.offset_bytes, bytes, found.entry, found.entry, path);
  }

  /// Groups: one object, or as torch 2.4 and later flatten them, one per hyperparameter.
  void read_groups() {
    std::map<std::uint64_t, PlainValue::Dict> groups;
    for (const std::size_t object : group_objects_) {
      const std::string_view name = wanted_[object].object->name;
      if (name == kGroupsKey) {
        const PlainValue value = value_of(object);
        const auto* const list = std::get_if<PlainValue::List>(&value.value);
        for (std::size_t g = 0; list != nullptr && g < list->size(); ++g) {
          const auto* const group = std::get_if<PlainValue::Dict>(&(*list)[g].value);
          if (group == nullptr) throw bad(fmt::format("group {} is no dict", g)).tensor(std::string(name));
          groups[g] = *group;
        }
        continue;
      }
      const std::string_view rest = name.substr(kInGroups.size());
      const std::size_t dot = rest.find('.');
      const auto number = parse_unsigned(rest.substr(0, dot), kMaxParameterGroups);
      if (dot == rest.npos || !number) throw bad("is of no group that has a number").tensor(std::string(name));
      groups[*number].emplace_back(std::string(rest.substr(dot + 1)), value_of(object));
    }
    take_groups(groups);
  }

  void take_groups(std::map<std::uint64_t, PlainValue::Dict>& groups) {
    if (groups.empty()) throw bad("holds no \"param_groups\"");
    std::optional<std::uint64_t> with_parameters;
    std::uint64_t listed = 0;
    std::vector<OptimizerFileGroup> all;
    for (auto& [number, values] : groups) {
      if (number != all.size()) throw bad(fmt::format("has no parameter group {}", all.size()));
      const std::uint64_t count = take_parameters(number, values);
      if (count > 0 && with_parameters)
        throw bad(fmt::format("parameter groups {} and {} both have parameters, but the names of states are those of "
                              "one group alone",
                              *with_parameters, number))
            .hint("NxD confuses the parameters of several groups in this form; it is damaged");
      if (count > 0) {
        with_parameters = number;
        listed = count;
      }
      all.push_back({std::move(values), 0});
    }
    if (!with_parameters) throw bad("its parameter groups are empty, but it holds states");
    for (std::uint32_t i = 0; i < of_.all.size(); ++i) {
      OptimizerFile& file = of_.all[i];
      if (of_.pp == 1) add_untrained(file, listed);  // of several stages, any one has saved the groups
      file.groups = all;
      file.groups[*with_parameters].count = static_cast<std::uint32_t>(file.entries.size());
      file.first_expert_group = static_cast<std::uint32_t>(all.size());
    }
  }

  /// Parameters without states have no names here.
  void add_untrained(OptimizerFile& file, std::uint64_t listed) const {
    if (listed < file.entries.size() || listed > std::max(most_parameters_, file.entries.size()))
      throw bad(fmt::format("lists {} parameters in its groups, but holds states of {}, and the model has {} tensors",
                            listed, file.entries.size(), most_parameters_))
          .hint(kOtherCheckpoint);
    file.entries.resize(listed);
  }

  /// Takes out the numbers of parameters. \returns how many there are.
  std::uint64_t take_parameters(std::uint64_t number, PlainValue::Dict& values) const {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [](const auto& value) { return value.first == kGroupParametersKey; });
    const auto* const list = found == values.end() ? nullptr : std::get_if<PlainValue::List>(&found->second.value);
    if (list == nullptr) throw bad(fmt::format("parameter group {} has no list \"params\"", number));
    const std::uint64_t count = list->size();
    values.erase(found);
    return count;
  }

  Files& files_;
  const fs::path& folder_;
  std::size_t most_parameters_ = 0;  // of the first stage of the model
  DcpDirectory metadata_;
  std::vector<Wanted> wanted_;
  std::vector<ChunkedTensor> found_;  // of wanted_
  std::vector<Number> numbers_;
  std::vector<std::size_t> group_objects_;  // into wanted_
  std::vector<Stage> stages_;
  std::map<std::uint32_t, std::unique_ptr<Source>> sources_;  // by number in OptimizerFiles::files
  bool has_states_ = false;
  OptimizerFiles of_;
};

}  // namespace

OptimizerFiles read_optimizer_dcp(Files& files, const fs::path& folder, const ShardedCheckpoint& shards) {
  return DcpOptimizerReader(files, folder, shards).read();
}

}  // namespace reshard
