// Builds the tensor maps of rank files from rules, for targets and sources.

#include "reshard/layouts/ranks/sharded_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/layouts/rules/packing.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

/// A rule and its stored name. A tied parameter has its source's rule under its own name.
struct NamedRule {
  std::string stored_name;
  const PartitionRule* rule;
  std::string tied_to;  // name of the source; empty if the parameter is not tied
};

/// Returns nullptr if there is no rule of that name.
const PartitionRule* find_rule(const std::vector<PartitionRule>& rules, const std::string& stored_name) {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const PartitionRule& rule) { return rule.stored_name == stored_name; });
  return found == rules.end() ? nullptr : &*found;
}

std::vector<NamedRule> named_rules(const std::vector<PartitionRule>& rules, const std::vector<TiedParameter>& tied) {
  std::vector<NamedRule> named;
  for (const PartitionRule& rule : rules) named.push_back({rule.stored_name, &rule, {}});
  for (const TiedParameter& parameter : tied)
    if (const PartitionRule* source = find_rule(rules, parameter.source))
      named.push_back({parameter.name, source, parameter.source});
  return named;
}

/// Returns the logical tensors that are smaller than the ranks' stored tensors together, because of replicated heads or
/// padding.
OriginalShapes enlarged_originals(const std::vector<PartitionRule>& rules, const TensorMap& map) {
  OriginalShapes found;
  for (const PartitionRule& rule : rules)
    for (const PartitionRule::Part& part : rule.parts) {
      if (!rule.records_originals) continue;
      for (const auto& [dim, placement] : part.placed) {
        std::uint64_t chunks = 0;
        for (const std::vector<std::uint32_t>& taken : placement->taken) chunks += taken.size();
        const auto logical = chunks == placement->units ? std::nullopt : map.find_logical(part.logical_name);
        if (logical) found.emplace(part.logical_name, map.logical[*logical].shape);
      }
    }
  return found;
}

/// Sets the names, over all layers, that a record lists as transposed and as scaled.
void record_names(const std::vector<PartitionRule>& rules, RankRecord& record) {
  for (const PartitionRule& rule : rules) {
    if (!rule.file_dims.empty()) record.transposed.insert(with_stars(rule.stored_name));
    if (rule.scaled) record.scaled.insert(with_stars(rule.stored_name));
  }
}

/// The logical tensors of a rule's parts in the map.
struct Originals {
  std::vector<std::uint32_t> logical;
  std::vector<Dims> shapes;
};

Originals originals_of(const TargetMap& map, const PartitionRule& rule) {
  Originals originals;
  for (const PartitionRule::Part& part : rule.parts) {
    const auto logical = map.find_logical(part.logical_name);
    if (!logical)
      throw Error(ErrorKind::kInternal, "the plan requests a tensor that was not validated").tensor(part.logical_name);
    originals.logical.push_back(*logical);
    originals.shapes.push_back(map.logical[*logical].shape);
  }
  return originals;
}

/// Returns the stored tensor that the rule composes from them on a rank.
StoredTensor stored_from(const TargetMap& map, const NamedRule& named, std::uint32_t rank, const Originals& originals) {
  const PartitionRule& rule = *named.rule;
  StoredTensor stored{named.stored_name, rule.constant ? rule.constant->dtype : DType::kI32, {}};
  stored.tied = rule.tied || !named.tied_to.empty();
  stored.label = stored.tied ? PartitionLabel::kTied : rule.label;
  stored.replicated = rule.label == PartitionLabel::kReplicated && !stored.tied;
  stored.expert_parallel = rule.expert_parallel;
  if (!rule.constant) stored.dtype = map.logical[originals.logical.front()].dtype;
  for (const std::uint32_t index : originals.logical) {
    const LogicalTensor& tensor = map.logical[index];
    if (tensor.dtype != stored.dtype)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is {}, but {} is {}: tensors of two dtypes cannot be fused into {}", name(tensor.dtype),
                              rule.parts.front().logical_name, name(stored.dtype), named.stored_name))
          .tensor(tensor.name)
          .hint("give both one dtype first (convert with `dtype`), or choose a layout that does not fuse linears");
  }
  const auto shape = stored_shape(rule, rank, originals.shapes);
  if (!shape) throw Error(ErrorKind::kInternal, "the rule does not fit a validated shape").tensor(named.stored_name);
  if (!num_bytes(stored.dtype, *shape))
    throw Error(ErrorKind::kUsage, fmt::format("a rank's slice {} splits a packed byte: elements of {} have {} bits",
                                               to_string(*shape), name(stored.dtype), bits(stored.dtype)))
        .tensor(rule.parts.front().logical_name)
        .hint("choose a smaller TP degree");
  stored.shape = file_shape(rule, rank, *shape);
  stored.set_view(view_of_file(rule, rank, View::of(stored.shape)).value());
  return stored;
}

/// A rank's file in the map. The ranks of a stage have the same tensors, so the other ranks' files are copied from it.
struct RankInMap {
  std::uint32_t file = 0;
  std::vector<std::uint32_t> stored;  // in the order of the rules
  std::vector<Originals> originals;   // parallel to `stored`
  std::uint32_t parts = 1;            // number of files
};

/// Adds the same file for another rank, with the path and ranks of `container`, and updates `rank` to it. \returns
/// false if offsets may differ: torch archives contain their file's name, a record contains the rank's number, and
/// both vary in length.
bool copy_rank(TargetMap& map, RankInMap& rank, const TargetContainer& container) {
  TargetFile file = map.files[rank.file];
  if (file.path.native().size() != container.path.native().size()) return false;
  if (std::to_string(file.tp_rank).size() != std::to_string(container.tp_rank).size()) return false;
  rank.file = static_cast<std::uint32_t>(map.files.size());
  const auto begin = static_cast<std::uint32_t>(map.stored.size());
  for (std::uint32_t& index : rank.stored) index = index - file.first_stored + begin;
  for (std::uint32_t i = 0; i < file.stored_count; ++i) {
    StoredTensor tensor = map.stored[file.first_stored + i];
    tensor.file = rank.file;
    map.add_stored(std::move(tensor));
  }
  file.path = container.path;
  file.record = container.record;
  file.tp_rank = container.tp_rank;
  file.first_stored = begin;
  map.files.push_back(std::move(file));
  return true;
}

RankId rank_of(const TargetContainer& container) {
  return {container.tp_rank, container.pp_rank, 0, container.ep_rank};
}

/// Returns the container of one rank, with the path of its first file.
TargetContainer container_of(RankId rank, const TargetContainer& like, const RankTarget& target) {
  TargetContainer container = like;
  container.format = target.format;
  container.path = rank_path(*target.layout, target.format, rank);
  container.tp_rank = rank.tp_rank;
  container.pp_rank = rank.pp_rank;
  container.ep_rank = rank.ep_rank;
  return container;
}

/// Adds one rank's state dict: the tensors of `rules` and aliases of some of them.
RankInMap add_rank(TargetMap& map, const std::vector<NamedRule>& rules, TargetContainer container, std::uint32_t rank,
                   const RankTarget& target) {
  RankInMap in_map;
  in_map.file = static_cast<std::uint32_t>(map.files.size());
  const auto write = [&](TargetContainer file) {
    for (const std::uint32_t stored : add_target_container(map, std::move(file))) in_map.stored.push_back(stored);
  };
  std::uint64_t bytes = 0;
  for (const NamedRule& rule : rules) {
    in_map.originals.push_back(originals_of(map, *rule.rule));
    StoredTensor stored = stored_from(map, rule, rank, in_map.originals.back());
    const std::uint64_t more = num_bytes(stored.dtype, stored.shape).value_or(0);
    if (!container.tensors.empty() && more > target.max_part_bytes - std::min(bytes, target.max_part_bytes)) {
      TargetContainer next = container;
      next.tensors.clear();
      next.path = rank_path(*target.layout, target.format, rank_of(container), in_map.parts++);
      write(std::exchange(container, std::move(next)));
      bytes = 0;
    }
    bytes += more;
    container.tensors.push_back({std::move(stored), {}});
  }
  write(std::move(container));
  return in_map;
}

/// Adds the pieces of one rank's tensors.
void add_rank_pieces(TargetMap& map, const std::vector<NamedRule>& rules, const RankInMap& in_map, std::uint32_t rank) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (in_map.stored[i] != kStoredElsewhere)
      map.add_pieces(in_map.stored[i], *rules[i].rule, rank, in_map.originals[i].logical, in_map.originals[i].shapes);
}

/// Adds the files of one stage's tensor-parallel ranks, on the expert-parallel rank of `record`. `record` is written to
/// the files with their rank. `like` contains everything that the files have in common.
void add_tensor_parallel_ranks(TargetMap& map, const std::vector<NamedRule>& rules, const TargetContainer& like,
                               RankRecord record, const RankTarget& target) {
  std::optional<RankInMap> rank;  // the previous rank, to copy from, if all of it is in one file
  const std::uint32_t tp = record.tp_degree;
  for (std::uint32_t tp_rank = target.first_rank; tp_rank < tp && tp_rank <= target.last_rank; ++tp_rank) {
    record.tp_rank = tp_rank;
    TargetContainer container =
        container_of({tp_rank, record.pp_rank, 0, record.ep_rank, record.ep_degree > 1}, like, target);
    container.record = record;
    const std::uint32_t number = record.ep_rank * tp + tp_rank;
    if (rank && copy_rank(map, *rank, container)) {
      add_rank_pieces(map, rules, *rank, number);
      continue;
    }
    RankInMap added = add_rank(map, rules, std::move(container), number, target);
    add_rank_pieces(map, rules, added, number);
    const bool one_file = target.format != Format::kXser && added.parts == 1;
    if (one_file && target.layout->ranks()->ranks_are_alike) rank = std::move(added);
  }
}

/// Adds the files of one stage's ranks. A tied parameter is stored as an alias if the format has aliases, otherwise as
/// a replica.
void add_stage(TargetMap& map, const StageRules& stage, const Mesh& mesh, std::uint32_t pp_rank,
               const RankTarget& target) {
  RankRecord record;
  record.tp_degree = mesh.tp;
  record.pp_rank = pp_rank;
  record.pp_degree = mesh.pp;
  record.ep_degree = mesh.ep;
  record.originals = std::make_shared<const OriginalShapes>(enlarged_originals(stage.rules, map));
  record_names(stage.rules, record);
  for (std::uint32_t ep_rank = 0; ep_rank < mesh.ep; ++ep_rank) {
    record.ep_rank = ep_rank;
    std::vector<NamedRule> stored_rules;
    TargetContainer like;
    for (NamedRule& rule : named_rules(stage.rules, stage.tied)) {
      if (!rule.rule->is_on(ep_rank)) continue;
      if (rule.tied_to.empty() || (target.stores_tied && target.format == Format::kSafetensors))
        stored_rules.push_back(std::move(rule));
      else if (target.stores_tied)
        like.aliases.push_back({rule.stored_name, rule.tied_to});
    }
    const RankFormat& ranks = *target.layout->ranks();
    like.has_info = ranks.has_xser_info;
    like.shares_tensors = ranks.has_xser_info && ranks.has_own_name != nullptr;  // NxD's own loader
    if (!target.values.empty()) {
      SavedValue::Dict state_dict;
      for (const NamedRule& rule : stored_rules)
        state_dict.push_back({rule.stored_name, {SavedValue::Tensor{static_cast<std::uint32_t>(state_dict.size())}}});
      state_dict.insert(state_dict.end(), target.values.begin(), target.values.end());
      like.structure = std::make_shared<const SavedValue>(SavedValue{std::move(state_dict)});
    } else if (stage.metadata != nullptr && ranks.saved_form != nullptr) {
      std::vector<std::string> names;
      for (const NamedRule& rule : stored_rules) names.push_back(rule.stored_name);
      like.structure = ranks.saved_form(target.format, *stage.metadata, names, like.aliases);
    }
    add_tensor_parallel_ranks(map, stored_rules, like, record, target);
  }
}

/// Adds the tensors that `stages` have in place of parameters, computed from these. \returns the parameters.
std::set<std::string> add_changed(TargetMap& map, const std::vector<StageRules>& stages,
                                  std::span<const LogicalTensor> logical) {
  std::unordered_map<std::string_view, const PartitionRule::Part*> parts;  // by parameter and by name
  std::unordered_map<std::string_view, std::vector<const PartitionRule::Part*>> by_parameter;
  for (const StageRules& stage : stages)
    for (const PartitionRule& rule : stage.rules)
      for (const PartitionRule::Part& part : rule.parts)
        if (part.changed && parts.emplace(part.logical_name, &part).second)
          by_parameter[part.changed->parameter].push_back(&part);
  std::set<std::string> changed;
  for (const LogicalTensor& parameter : logical)
    for (const PartitionRule::Part* part : by_parameter[parameter.name]) {
      map.add_logical(changed_tensor(parameter, part->logical_name, part->changed->change), {});
      changed.insert(parameter.name);
    }
  return changed;
}

}  // namespace

std::vector<StageRules> stage_rules(const std::vector<StagePlan>& plans, std::uint32_t tp, std::uint32_t ep) {
  std::vector<StageRules> stages;
  for (const StagePlan& plan : plans) {
    StageRules& stage =
        stages.emplace_back(StageRules{partition_rules(plan.metadata, tp, ep), plan.tied, &plan.metadata});
    // A matrix that several linears share becomes a logical tensor of its own, which is computed from theirs.
    for (PartitionRule& rule : stage.rules)
      if (rule.one_of_parts) rule.parts = {{rule.stored_name}};
  }
  return stages;
}

TargetMap sharded_target_map(const std::vector<StageRules>& stages, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep) {
  TargetMap map;
  map.reserve_logical(logical.size());
  const std::set<std::string> changed = add_changed(map, stages, logical);
  for (const LogicalTensor& tensor : logical)
    if (changed.count(tensor.name) == 0) map.add_logical(tensor, {});
  const Mesh mesh{tp, static_cast<std::uint32_t>(stages.size()), 1, ep};
  for (std::uint32_t pp_rank = 0; pp_rank < stages.size(); ++pp_rank)
    add_stage(map, stages[pp_rank], mesh, pp_rank, target);
  return map;
}

TargetMap sharded_target_map(const std::vector<StagePlan>& plans, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep) {
  return sharded_target_map(stage_rules(plans, tp, ep), tp, logical, target, ep);
}

TargetMap sharded_target_map(const std::vector<PartitionRule>& rules, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target) {
  return sharded_target_map({StageRules{rules}}, tp, logical, target, 1);
}

namespace {

/// Sets the view of a file's tensor to the one that the rule defines.
void view_by_rule(SourceMap& map, std::uint32_t index, const PartitionRule& rule, std::uint32_t rank) {
  StoredTensor& stored = map.stored[index];
  const auto fail = [&](ErrorKind kind, const std::string& message) {
    throw Error(kind, message).in(map.files[stored.file].path).tensor(stored.name);
  };
  const std::uint32_t slices = slices_on(rule, rank);
  if (slices != 0 && (stored.shape.size() < 2 || stored.shape[0] != slices))
    fail(ErrorKind::kBadInput,
         fmt::format("has the shape {}, but is one of {} slices in the model", to_string(stored.shape), slices));
  auto view = view_of_file(rule, rank, stored.view());
  if (!view) fail(ErrorKind::kUnsupported, "contains experts whose matrices are not consecutive");
  stored.set_view(*std::move(view));
}

void add_source_rank(SourceMap& map, const Container& file, RankId rank, const ShardedCheckpoint& checkpoint,
                     const std::unordered_map<std::string, NamedRule>& rules) {
  const std::uint32_t first_file = map.add_files(file, rank);
  // Layouts without an optimizer's files are for inference: whole models were split into them.
  const RankFormat* format = checkpoint.folder.layout == nullptr ? nullptr : checkpoint.folder.layout->ranks();
  const bool trains = format == nullptr || format->optimizer.has_value();
  for (const TensorEntry& tensor : file.tensors) {
    const auto found = rules.find(tensor.name);
    if (found != rules.end() && !found->second.rule->is_on(rank.ep_rank))
      throw Error(
          ErrorKind::kBadInput,
          fmt::format(
              "the file belongs to expert-parallel rank {}, but according to {} the tensor belongs to another rank",
              rank.ep_rank, metadata_path(checkpoint, rank.pp_rank).filename().string()))
          .in(file.path)
          .tensor(tensor.name)
          .hint("the ranks are mixed up, or come from different checkpoints");
    if (found == rules.end())
      throw Error(ErrorKind::kBadInput, checkpoint.rules.empty()
                                            ? "is in the file, but not listed in " +
                                                  metadata_path(checkpoint, rank.pp_rank).filename().string()
                                            : "is in the file, but not in the model that config.json describes")
          .in(file.path)
          .tensor(tensor.name)
          .hint(!checkpoint.rules.empty() ? "config.json belongs to another model"
                : checkpoint.adapter ? "the metadata belongs to another adapter, or lists this one under another name"
                                     : "if it is a tied replica of another parameter, config.json must have "
                                       "\"tie_word_embeddings\": true");
    const PartitionRule& rule = *found->second.rule;
    const std::uint32_t number = rank.ep_rank * checkpoint.tp + rank.tp_rank;
    const auto add = [&]() -> std::uint32_t {
      const std::uint32_t index = map.add_stored(tensor, first_file, rule.label);
      view_by_rule(map, index, rule, number);
      StoredTensor& stored = map.stored[index];
      stored.tied = rule.tied || !found->second.tied_to.empty();
      if (stored.tied) stored.label = PartitionLabel::kTied;
      stored.replicated = trains && rule.label == PartitionLabel::kReplicated && !stored.tied;
      stored.expert_parallel = rule.expert_parallel;
      return index;
    };
    if (!rule.one_of_parts) {
      map.add_pieces(add(), rule, number);
      continue;
    }
    PartitionRule one = rule;
    for (const PartitionRule::Part& part : rule.parts) {
      one.parts = {part};
      map.add_pieces(add(), one, number);
    }
  }
}

/// Validates that logical tensors have the shapes that the files record.
void validate_originals(const ShardedCheckpoint& checkpoint, const OriginalShapes& by_rules) {
  const OriginalShapes& recorded = *checkpoint.record->originals;
  const auto fail = [&](const std::string& tensor, const std::string& message) {
    throw Error(ErrorKind::kBadInput, message)
        .in(checkpoint.files.front().front().path)
        .tensor(tensor)
        .hint("config.json belongs to another model, or was changed after the weights were written");
  };
  for (const auto& [tensor, shape] : recorded) {
    const auto found = by_rules.find(tensor);
    const std::string had = fmt::format("according to the file, the logical tensor has the shape {}", to_string(shape));
    if (found == by_rules.end())
      fail(tensor, had + ", but according to config.json it is neither padded nor replicated on these ranks");
    else if (found->second != shape)
      fail(tensor, fmt::format("{}, but {} in config.json", had, to_string(found->second)));
  }
  for (const auto& [tensor, shape] : by_rules)
    if (!recorded.count(tensor))
      fail(tensor, fmt::format("according to config.json, the logical tensor has the shape {}, but the file does not "
                               "record that it is padded or replicated on these ranks",
                               to_string(shape)));
}

}  // namespace

std::vector<PartitionRule> rules_of_stage(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank) {
  std::vector<PartitionRule> rules;
  try {
    if (!checkpoint.metadata.empty())
      rules = partition_rules(checkpoint.metadata[pp_rank], checkpoint.tp, checkpoint.ep);
  } catch (Error& error) {
    throw error.in(metadata_path(checkpoint, pp_rank));
  }
  if (!checkpoint.rules.empty())
    rules.insert(rules.end(), checkpoint.rules[pp_rank].begin(), checkpoint.rules[pp_rank].end());
  return rules;
}

namespace {

/// Makes parameters that the rules list as replicas of others independent. Each parameter that may be tied gets the
/// partition of its source on stages that do not list it.
void add_tied_rules(std::vector<std::vector<PartitionRule>>& rules, const std::vector<TiedParameter>& tied) {
  for (const TiedParameter& parameter : tied) {
    const PartitionRule* source = nullptr;
    for (std::vector<PartitionRule>& stage : rules)
      for (PartitionRule& rule : stage) {
        if (rule.parts.size() != 1) continue;
        if (!source && rule.stored_name == parameter.source) source = &rule;
        if (!rule.tied || rule.parts.front().logical_name != parameter.source) continue;
        rule.parts.front().logical_name = parameter.name;
        rule.tied = false;
        rule.label = rule.stack_dim == 0 ? PartitionLabel::kColumn : PartitionLabel::kRow;
      }
    if (!source) continue;
    PartitionRule own = *source;
    own.stored_name = parameter.name;
    own.parts.front().logical_name = parameter.name;
    for (std::vector<PartitionRule>& stage : rules)
      if (!find_rule(stage, parameter.name)) stage.push_back(own);
  }
}

/// Adds the parameters that the files contain as tensors that follow from them.
void restore_parameters(SourceMap& map, const std::vector<std::vector<PartitionRule>>& rules) {
  struct Inputs {
    std::vector<std::string> names;
    std::vector<ValueChange> changes;
  };
  std::map<std::string, Inputs> parameters;
  for (const std::vector<PartitionRule>& stage : rules)
    for (const PartitionRule& rule : stage)
      for (const PartitionRule::Part& part : rule.parts) {
        if (!part.changed || !map.find_logical(part.logical_name)) continue;
        auto& [names, changes] = parameters[part.changed->parameter];
        const auto is_same = [&](const ValueChange& other) { return other.first == part.changed->change.first; };
        if (std::any_of(changes.begin(), changes.end(), is_same)) continue;
        names.push_back(part.logical_name);
        changes.push_back(part.changed->change);
      }
  for (auto& [name, inputs] : parameters) add_restored(map, name, std::move(inputs.names), std::move(inputs.changes));
}

}  // namespace

SourceMap sharded_source_map(const ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied,
                             const std::vector<TiedParameter>& unlisted) {
  SourceMap map;
  std::vector<std::vector<PartitionRule>> rules;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    rules.push_back(rules_of_stage(checkpoint, pp_rank));
  add_tied_rules(rules, tied);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    std::unordered_map<std::string, NamedRule> by_name;
    for (const NamedRule& rule : named_rules(rules[pp_rank], unlisted)) by_name.emplace(rule.stored_name, rule);
    // With several stages, the source may be listed only for its own stage.
    for (const TiedParameter& parameter : unlisted)
      for (const std::vector<PartitionRule>& stage : rules)
        if (const PartitionRule* source = find_rule(stage, parameter.source))
          by_name.try_emplace(parameter.name, NamedRule{parameter.name, source, parameter.source});
    const std::vector<Container>& files = checkpoint.files[pp_rank];
    for (std::uint32_t i = 0; i < files.size(); ++i)
      add_source_rank(map, files[i], {i % checkpoint.tp, pp_rank, 0, i / checkpoint.tp}, checkpoint, by_name);
    for (const ShardedCheckpoint::Copy& copy : checkpoint.copies)
      if (copy.rank.pp_rank == pp_rank) add_source_rank(map, copy.file, copy.rank, checkpoint, by_name);
  }
  OriginalShapes enlarged;
  for (const std::vector<PartitionRule>& stage : checkpoint.rules) enlarged.merge(enlarged_originals(stage, map));
  if (checkpoint.record) validate_originals(checkpoint, enlarged);
  restore_parameters(map, rules);
  return map;
}

}  // namespace reshard
