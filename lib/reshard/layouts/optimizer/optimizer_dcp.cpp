#include "reshard/layouts/optimizer/optimizer_dcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/dcp/dcp_chunks.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/states/optimizer_keys.h"
#include "reshard/layouts/states/row_shards.h"

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
    of_.stages.resize(of_.pp);
    for (OptimizerStage& stage : of_.stages) stage.path = metadata_.where;
    sort_in();
    for (const Part& part : parts_)
      if (part.has_rows()) place_rows(part);
    for (const Part& part : parts_)
      if (!part.has_rows()) place_number(part);
    validate_ranks();
    find();
    add_states();
    read_groups();
    return std::move(of_);
  }

 private:
  /// An entry of the checkpoint: the local tensor of one tensor-parallel rank or of all, or a number.
  struct Part {
    DcpStateKey key;
    const DcpTensor* tensor;  // null for an object
    const DcpBytes* object;   // null for a tensor

    bool has_rows() const { return tensor != nullptr && !tensor->shape.empty(); }
    const std::string& entry() const { return tensor != nullptr ? tensor->name : object->name; }
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

  /// Lists the entries, and sorts the chunks of each tensor by rows: the largest number of chunks is that of
  /// data-parallel ranks.
  void sort_in() {
    for (DcpTensor& tensor : metadata_.all.tensors) {
      const auto key = parse_dcp_state_key(tensor.name);
      if (!key)
        throw bad(tensor, tensor.name.starts_with(kStateBegins)
                              ? "is not the name of a state: base_state.PARAMETER.STATE|pp-0000|tp-0000 is expected"
                              : "is a tensor, but not a parameter's state (base_state.…)")
            .hint("the directory contains something other than an optimizer that NxD saved");
      parts_.push_back({*key, &tensor, nullptr});
      std::stable_sort(tensor.chunks.begin(), tensor.chunks.end(),
                       [](const DcpChunk& a, const DcpChunk& b) { return a.box.begin < b.box.begin; });
      of_.dp = std::max(of_.dp, static_cast<std::uint32_t>(tensor.chunks.size()));
    }
    for (const DcpBytes& object : metadata_.all.bytes)
      if (const auto key = parse_dcp_state_key(object.name))
        parts_.push_back({*key, nullptr, &object});
      else if (object.name == kGroupsKey || object.name.starts_with(kInGroups))
        group_objects_.push_back(&object);  // others, such as shape_info, are also known from the tensors
    if (parts_.empty())
      throw bad("contains no optimizer states (base_state.…)")
          .hint("it is another kind of checkpoint, or was saved before the first step");
  }

  /// Validates a local tensor, and makes the entry of its parameter.
  void place_rows(const Part& part) {
    const DcpTensor& tensor = *part.tensor;
    const std::uint32_t pp_rank = part.key.pp_rank.value_or(0), tp_rank = part.key.tp_rank.value_or(0);
    if (pp_rank >= of_.pp || tp_rank >= of_.tp)
      throw bad(tensor, fmt::format("belongs to tp rank {}, pp rank {}, but the model has tp {} × pp {} ranks", tp_rank,
                                    pp_rank, of_.tp, of_.pp))
          .hint(kOtherCheckpoint);
    if (of_.pp > 1 && !part.key.pp_rank)
      throw bad(tensor, fmt::format("does not name its pipeline rank, but there are {}", of_.pp))
          .hint(kOtherCheckpoint);
    std::vector<OptimizerEntry>& entries = of_.stages[pp_rank].entries;
    const auto [entry, is_new] = entries_.emplace(std::pair(pp_rank, part.key.parameter), entries.size());
    if (is_new) entries.push_back({{}, tensor.shape, part.key.parameter});
    auto& ranks = ranks_[{pp_rank, part.key.parameter, part.key.state}];
    const bool is_second = !ranks.insert(part.key.tp_rank).second;
    if (ranks.size() > 1 && ranks.contains(std::nullopt))
      throw bad(tensor, "exists both for each tensor-parallel rank and for all of them");
    if (is_second) throw bad(tensor, fmt::format("is a second state of tp rank {}, pp rank {}", tp_rank, pp_rank));
    if (const Dims& shape = *entries[entry->second].shape; tensor.shape != shape)
      throw bad(tensor, fmt::format("has the shape {}, but another state of its parameter has {}",
                                    to_string(tensor.shape), to_string(shape)));
    validate_rows(tensor);
  }

  /// Validates that each chunk has the rows of its data-parallel rank.
  void validate_rows(const DcpTensor& tensor) const {
    if (tensor.chunks.size() != of_.dp)
      throw bad(tensor, fmt::format("has {} chunk{}, but others have those of {} data-parallel ranks",
                                    tensor.chunks.size(), tensor.chunks.size() == 1 ? "" : "s", of_.dp))
          .hint("a data-parallel rank did not finish its save, or the files are of several");
    for (std::uint32_t dp_rank = 0; dp_rank < of_.dp; ++dp_rank) {
      const Box& box = tensor.chunks[dp_rank].box;
      const RowShare share = row_share(tensor.shape[0], of_.dp, dp_rank);
      Box expected = whole(tensor.shape);
      expected.begin[0] = share.begin_row;
      expected.size[0] = share.rows;
      if (box == expected) continue;
      throw bad(tensor, fmt::format("has a chunk of {} at {}, but data-parallel rank {} of {} has {} at {}",
                                    to_string(box.size), to_string(box.begin), dp_rank, of_.dp,
                                    to_string(expected.size), to_string(expected.begin)))
          .hint("it is not an optimizer that NxD shards by rows");
    }
  }

  /// Returns the entries of a number, whose name does not include its stage: those of its parameter in all stages.
  std::vector<std::pair<OptimizerStage*, std::uint32_t>> entries_of(const Part& number) {
    std::vector<std::pair<OptimizerStage*, std::uint32_t>> found;
    for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank)
      if (const auto entry = entries_.find({pp_rank, number.key.parameter}); entry != entries_.end())
        found.emplace_back(&of_.stages[pp_rank], entry->second);
    return found;
  }

  /// Validates that a number belongs to a parameter that has other states.
  void place_number(const Part& number) {
    const auto entries = entries_of(number);
    if (entries.empty())
      throw bad("none of its parameter's states has the parameter's shape")
          .tensor(number.entry())
          .hint(kOtherCheckpoint);
    for (const auto& [stage, entry] : entries) {
      const auto pp_rank = static_cast<std::uint32_t>(stage - of_.stages.data());
      auto& ranks = ranks_[{pp_rank, number.key.parameter, number.key.state}];
      if (!ranks.empty()) throw bad("occurs twice").tensor(number.entry());
      ranks.insert(std::nullopt);
    }
  }

  void validate_ranks() const {
    for (std::uint32_t pp_rank = 0; pp_rank < of_.pp; ++pp_rank)
      if (of_.stages[pp_rank].entries.empty())
        throw bad(fmt::format("contains no states of pp rank {}, but the model has {} pipeline ranks", pp_rank, of_.pp))
            .hint(kOtherCheckpoint);
    for (const auto& [key, ranks] : ranks_) {
      if (ranks.contains(std::nullopt) || ranks.size() == of_.tp) continue;
      const auto& [pp_rank, parameter, state] = key;
      std::uint32_t missing = 0;
      while (ranks.contains(missing)) ++missing;
      throw bad(fmt::format("has no {} of tp rank {}, pp rank {}, but of {} of {} tensor-parallel ranks", state,
                            missing, pp_rank, ranks.size(), of_.tp))
          .tensor(parameter)
          .hint(kOtherCheckpoint);
    }
  }

  void find() {
    DcpChunkFinder finder(files_, folder_, metadata_, of_.files, of_.notes);
    for (const Part& part : parts_)
      part.tensor != nullptr ? finder.add(*part.tensor, part.entry()) : finder.add({part.object}, part.entry());
    for (const DcpBytes* object : group_objects_) finder.add({object}, object->name);
    found_ = finder.find();
    for (const SourceFile& file : of_.files)
      if (file.frame)
        throw Error(ErrorKind::kUnsupported, "has compressed items, which NxD does not write")
            .in(file.path)
            .hint("save the checkpoint without compression, or leave out `with-optimizer`");
    of_.file_count = of_.files.size();
    of_.paths = {metadata_.where};
  }

  /// Adds shards and numbers to the stages, those with rows first.
  void add_states() {
    for (const bool with_rows : {true, false})
      for (std::size_t p = 0; p < parts_.size(); ++p)
        if (parts_[p].has_rows() == with_rows) add_state(parts_[p], p);
    for (OptimizerStage& stage : of_.stages) stage.sort_shards();
  }

  void add_state(const Part& part, std::size_t found) {
    const auto add = [&](OptimizerStage& stage, std::uint32_t entry, std::uint32_t rank,
                         const ChunkedTensor::Chunk& chunk) {
      const DType dtype = found_[found].dtype;
      const auto size_bytes = num_bytes(dtype, chunk.box.size).value_or(0);
      stage.shards.push_back(
          {{part.key.state, dtype, chunk.box.size, chunk.offset_bytes, size_bytes, chunk.file, chunk.strides},
           entry,
           rank,
           chunk.box.begin.empty() ? 0 : chunk.box.begin[0]});
    };
    if (part.has_rows()) {
      const std::uint32_t pp_rank = part.key.pp_rank.value_or(0), tp_rank = part.key.tp_rank.value_or(0);
      for (std::uint32_t dp_rank = 0; dp_rank < of_.dp; ++dp_rank)
        add(of_.stages[pp_rank], entries_.at({pp_rank, part.key.parameter}), tp_rank * of_.dp + dp_rank,
            found_[found].chunks[dp_rank]);
      return;
    }
    for (const auto& [stage, entry] : entries_of(part))
      if (part.object != nullptr)
        stage->entries[entry].numbers.emplace_back(part.key.state, value_of(found));
      else
        add(*stage, entry, 0, found_[found].chunks.front());
  }

  PlainValue value_of(std::size_t number) {
    const ChunkedTensor& found = found_[number];
    const ChunkedTensor::Chunk& chunk = found.chunks.front();
    if (!opened_) opened_.emplace(files_, of_.files);
    return read_dcp_object(opened_->at(chunk.file), chunk.offset_bytes, found.shape.empty() ? 0 : found.shape[0],
                           found.entry, found.entry, of_.files[chunk.file].path);
  }

  /// Reads the groups: one object, or one per hyperparameter, as torch 2.4 and later flatten them.
  void read_groups() {
    std::vector<GroupObject> objects;
    for (std::size_t g = 0; g < group_objects_.size(); ++g) {
      const std::string& name = group_objects_[g]->name;
      objects.push_back(
          {name, metadata_.where, name.substr(std::min(kInGroups.size(), name.size())), value_of(parts_.size() + g)});
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
  std::vector<Part> parts_;
  std::vector<const DcpBytes*> group_objects_;
  std::vector<ChunkedTensor> found_;  // located entries: parts_, then group_objects_
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> entries_;  // by pipeline rank and parameter
  /// Tensor-parallel ranks that have a state, by pipeline rank, parameter and state; std::nullopt if all share it.
  std::map<std::tuple<std::uint32_t, std::string, std::string>, std::set<std::optional<std::uint32_t>>> ranks_;
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
