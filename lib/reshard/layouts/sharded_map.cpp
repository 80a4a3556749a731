// Tensor maps of files of ranks, from rules: of a target, and of a source.

#include "reshard/layouts/sharded_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rank_layout.h"
#include "reshard/layouts/rank_record.h"
#include "reshard/layouts/target_file.h"
#include "reshard/specs/metadata.h"

namespace reshard {
namespace {

/// The rule of a tied parameter: its source's, under its own name.
struct NamedRule {
  std::string stored_name;
  const CutRule* rule;
  std::string tied_to;  // the name of the source; empty for a parameter in its own right
};

/// Null if there is none of that name.
const CutRule* find_rule(const std::vector<CutRule>& rules, const std::string& stored_name) {
  const auto found =
      std::find_if(rules.begin(), rules.end(), [&](const CutRule& rule) { return rule.stored_name == stored_name; });
  return found == rules.end() ? nullptr : &*found;
}

std::vector<NamedRule> named_rules(const std::vector<CutRule>& rules, const std::vector<TiedParameter>& tied) {
  std::vector<NamedRule> named;
  for (const CutRule& rule : rules) named.push_back({rule.stored_name, &rule, {}});
  for (const TiedParameter& parameter : tied)
    if (const CutRule* source = find_rule(rules, parameter.source))
      named.push_back({parameter.name, source, parameter.source});
  return named;
}

/// The originals of which the ranks together have more than they are: heads that are repeated, and what is filled up.
OriginalShapes enlarged_originals(const std::vector<CutRule>& rules, const TensorMap& map) {
  OriginalShapes found;
  for (const CutRule& rule : rules)
    for (const CutRule::Placed& part : rule.placed) {
      if (!part.placement) continue;
      std::uint64_t chunks = 0;
      for (const std::vector<std::uint32_t>& taken : part.placement->taken) chunks += taken.size();
      const auto logical = chunks == part.placement->units ? std::nullopt : map.find_logical(part.logical_name);
      if (logical) found.emplace(part.logical_name, map.logical[*logical].shape);
    }
  return found;
}

/// The originals of a cut's parts in the map.
std::vector<TensorMap::Original> originals_of(const TensorMap& map, const Cut& cut) {
  std::vector<TensorMap::Original> originals;
  originals.reserve(cut.parts.size());
  for (const Cut::Part& part : cut.parts) {
    const auto logical = map.find_logical(part.logical_name);
    if (!logical)
      throw Error(ErrorKind::kInternal, "the plan asks for a tensor that was not proved").tensor(part.logical_name);
    originals.push_back({*logical, map.logical[*logical].shape});
  }
  return originals;
}

/// The stored tensor that `cut` makes of them.
StoredTensor stored_from(const TensorMap& map, const NamedRule& named, const Cut& cut,
                         const std::vector<TensorMap::Original>& originals) {
  if (cut.constant) return {named.stored_name, cut.constant->dtype, cut.constant->shape, 0, 0, 0, cut.kind};
  std::vector<Dims> shapes;
  const DType dtype = map.logical[originals.front().logical].dtype;
  for (const TensorMap::Original& original : originals) {
    const LogicalTensor& tensor = map.logical[original.logical];
    if (dtype != tensor.dtype)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is {}, but {} is {}: tensors of two dtypes cannot be joined into {}", name(tensor.dtype),
                              cut.parts.front().logical_name, name(dtype), named.stored_name))
          .tensor(tensor.name);
    shapes.push_back(original.shape);
  }
  const auto shape = stored_shape(cut, shapes);
  if (!shape) throw Error(ErrorKind::kInternal, "the cut does not fit a proved shape").tensor(named.stored_name);
  if (!num_bytes(dtype, *shape))
    throw Error(ErrorKind::kUsage,
                fmt::format("a rank's part {} goes through a packed byte: elements of {} have {} bits",
                            to_string(*shape), name(dtype), bits(dtype)))
        .tensor(cut.parts.front().logical_name)
        .hint("choose a smaller TP degree");
  return {named.stored_name, dtype, *shape, 0, 0, 0, !named.tied_to.empty() ? CutKind::kTied : cut.kind};
}

/// A rank's one file in the map. The ranks of a stage have the same tensors, so others' files are as this one.
struct RankInMap {
  std::uint32_t file = 0;
  std::vector<std::uint32_t> stored;                        // in the order of the rules, as are
  std::vector<std::vector<TensorMap::Original>> originals;  // of each of them
};

/// Adds the same file for another rank, whose `container` is, and which `rank` becomes. \returns false where its parts
/// may lie elsewhere: torch's archives have their file's name inside, a record the rank's number, and these may be
/// longer.
bool copy_rank(TensorMap& map, RankInMap& rank, const TargetContainer& container) {
  TensorFile file = map.files[rank.file];
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

/// The file of one rank.
TargetContainer container_of(RankId rank, const RankTarget& target) {
  TargetContainer container;
  container.format = target.format;
  container.path = target.layout->rank_path(target.format, rank);
  container.tp_rank = rank.tp_rank;
  container.pp_rank = rank.pp_rank;
  container.ep_rank = rank.ep_rank;
  return container;
}

/// The cut of one rank of a target.
Cut target_cut(const NamedRule& rule, std::uint32_t tp_rank, std::uint32_t tp, std::uint32_t ep_rank) {
  Cut cut = rule.rule->for_rank(tp_rank, tp, ep_rank);
  // What is shared is made of the originals by arithmetic, and is a tensor by itself.
  if (rule.rule->role == CutRule::Role::kShared) cut.parts = {{rule.stored_name, 1, {0}, {}}};
  return cut;
}

/// Adds one rank's state dict: the tensors of `rules`, and second names of some.
RankInMap add_rank(TensorMap& map, const std::vector<NamedRule>& rules, TargetContainer container, std::uint32_t tp) {
  RankInMap rank;
  rank.file = static_cast<std::uint32_t>(map.files.size());
  const std::uint32_t tp_rank = container.tp_rank;
  const std::uint32_t ep_rank = container.ep_rank;
  for (const NamedRule& rule : rules) {
    const Cut cut = target_cut(rule, tp_rank, tp, ep_rank);
    rank.originals.push_back(originals_of(map, cut));
    container.tensors.push_back(stored_from(map, rule, cut, rank.originals.back()));
    const ParallelParameter* parameter = rule.rule->parameter;
    container.tensors.back().expert_parallel = parameter != nullptr && parameter->expert_model_parallel();
  }
  rank.stored = add_target_container(map, std::move(container));
  for (std::size_t i = 0; i < rules.size(); ++i)
    map.add_cut(rank.stored[i], target_cut(rules[i], tp_rank, tp, ep_rank), rank.originals[i]);
  return rank;
}

/// Adds the files of one stage's tensor-parallel ranks, on the expert-parallel rank of `record`, which is what the files
/// say of themselves.
void add_tensor_parallel_ranks(TensorMap& map, const std::vector<NamedRule>& rules,
                               const std::vector<TensorAlias>& aliases, RankRecord record, const RankTarget& target) {
  std::optional<RankInMap> rank;  // the one before, which others are as, if one file has all of it
  const std::uint32_t tp = record.tp_degree;
  for (std::uint32_t tp_rank = target.first_rank; tp_rank < tp && tp_rank <= target.last_rank; ++tp_rank) {
    record.tp_rank = tp_rank;
    TargetContainer container =
        container_of({tp_rank, record.pp_rank, 0, record.ep_rank, record.ep_degree > 1}, target);
    container.aliases = aliases;
    container.record = record;
    if (rank && copy_rank(map, *rank, container)) {
      for (std::size_t i = 0; i < rules.size(); ++i)
        map.add_cut(rank->stored[i], target_cut(rules[i], tp_rank, tp, record.ep_rank), rank->originals[i]);
      continue;
    }
    RankInMap added = add_rank(map, rules, std::move(container), tp);
    if (target.format != Format::kXser) rank = std::move(added);
  }
}

/// Adds the files of one stage's ranks. A tied parameter is a second name where the format can say so, and a second
/// copy elsewhere.
void add_stage(TensorMap& map, const std::vector<CutRule>& rules, const std::vector<TiedParameter>& tied,
               const Mesh& mesh, std::uint32_t pp_rank, const RankTarget& target) {
  RankRecord record;
  record.tp_degree = mesh.tp;
  record.pp_rank = pp_rank;
  record.pp_degree = mesh.pp;
  record.ep_degree = mesh.ep;
  record.originals = std::make_shared<const OriginalShapes>(enlarged_originals(rules, map));
  for (std::uint32_t ep_rank = 0; ep_rank < mesh.ep; ++ep_rank) {
    record.ep_rank = ep_rank;
    std::vector<NamedRule> stored_rules;
    std::vector<TensorAlias> aliases;
    for (NamedRule& rule : named_rules(rules, tied)) {
      if (!rule.rule->is_on(ep_rank)) continue;
      if (rule.tied_to.empty() || (target.stores_tied && target.format == Format::kSafetensors))
        stored_rules.push_back(std::move(rule));
      else if (target.stores_tied)
        aliases.push_back({rule.stored_name, rule.tied_to});
    }
    add_tensor_parallel_ranks(map, stored_rules, aliases, record, target);
  }
}

}  // namespace

TensorMap sharded_target_map(const std::vector<StagePlan>& plans, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target, std::uint32_t ep) {
  TensorMap map;
  map.reserve_logical(logical.size());
  for (const LogicalTensor& tensor : logical) map.add_logical(tensor, {});
  const Mesh mesh{tp, static_cast<std::uint32_t>(plans.size()), 1, ep};
  for (std::uint32_t pp_rank = 0; pp_rank < plans.size(); ++pp_rank)
    add_stage(map, cut_rules(plans[pp_rank].metadata), plans[pp_rank].tied, mesh, pp_rank, target);
  return map;
}

TensorMap sharded_target_map(const std::vector<CutRule>& rules, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, const RankTarget& target) {
  TensorMap map;
  map.reserve_logical(logical.size());
  for (const LogicalTensor& tensor : logical) map.add_logical(tensor, {});
  add_stage(map, rules, {}, {tp, 1, 1, 1}, 0, target);
  return map;
}

namespace {

void add_source_rank(TensorMap& map, const Container& file, RankId rank, const ShardedCheckpoint& checkpoint,
                     const std::unordered_map<std::string, NamedRule>& rules) {
  const std::uint32_t first_file = map.add_files(file, rank);
  for (const TensorEntry& tensor : file.tensors) {
    const auto found = rules.find(tensor.name);
    if (found != rules.end() && !found->second.rule->is_on(rank.ep_rank))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("the file is of expert-parallel rank {}, but {} says the tensor is another's",
                              rank.ep_rank, metadata_file_name(rank.pp_rank)))
          .in(file.path)
          .tensor(tensor.name)
          .hint("the ranks are mixed up, or come from different checkpoints");
    if (found == rules.end())
      throw Error(ErrorKind::kBadInput,
                  checkpoint.rules.empty()
                      ? "the file holds it, but " + metadata_file_name(rank.pp_rank) + " does not list it"
                      : "the file holds it, but the model that config.json describes has no such tensor")
          .in(file.path)
          .tensor(tensor.name)
          .hint(!checkpoint.rules.empty() ? "config.json belongs to another model"
                : checkpoint.adapter      ? "the metadata belongs to another adapter, or knows this one by another name"
                                          : "if it is a tied copy of another parameter, config.json must say "
                                            "\"tie_word_embeddings\": true");
    Cut cut = found->second.rule->for_rank(rank.tp_rank, checkpoint.tp, rank.ep_rank);
    const CutKind kind = found->second.tied_to.empty() ? cut.kind : CutKind::kTied;
    if (cut.kind != CutKind::kReplicated) {
      map.add_cut(map.add_stored(tensor, first_file, kind), cut);
      continue;
    }
    Cut one = cut;
    for (Cut::Part& part : cut.parts) {  // of several parts, the tensor is each of them
      one.parts = {std::move(part)};
      map.add_cut(map.add_stored(tensor, first_file, kind), one);
    }
  }
}

/// The originals are as large as the files say that they were.
void prove_originals(const ShardedCheckpoint& checkpoint, const OriginalShapes& by_rules) {
  const OriginalShapes& recorded = *checkpoint.record->originals;
  const auto fail = [&](const std::string& tensor, const std::string& message) {
    throw Error(ErrorKind::kBadInput, message)
        .in(checkpoint.files.front().front().path)
        .tensor(tensor)
        .hint("config.json belongs to another model, or was changed after the weights were written");
  };
  for (const auto& [tensor, shape] : recorded) {
    const auto found = by_rules.find(tensor);
    const std::string had = fmt::format("the file says that the original has the shape {}", to_string(shape));
    if (found == by_rules.end())
      fail(tensor, had + ", but by config.json it is neither filled up nor repeated on these ranks");
    else if (found->second != shape)
      fail(tensor, fmt::format("{}, but config.json says {}", had, to_string(found->second)));
  }
  for (const auto& [tensor, shape] : by_rules)
    if (!recorded.count(tensor))
      fail(tensor, fmt::format("by config.json the original has the shape {}, but the file does not say that it is "
                               "filled up or repeated on these ranks",
                               to_string(shape)));
}

/// The rules of each pipeline rank.
std::vector<std::vector<CutRule>> rules_of_stages(const ShardedCheckpoint& checkpoint) {
  std::vector<std::vector<CutRule>> rules;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    rules.push_back(checkpoint.rules.empty() ? cut_rules(checkpoint.metadata[pp_rank]) : checkpoint.rules);
  return rules;
}

}  // namespace

TensorMap sharded_source_map(const ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied) {
  TensorMap map;
  const std::vector<std::vector<CutRule>> rules = rules_of_stages(checkpoint);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    std::unordered_map<std::string, NamedRule> by_name;
    for (const NamedRule& rule : named_rules(rules[pp_rank], tied)) by_name.emplace(rule.stored_name, rule);
    // With several stages, a tied parameter may be listed for the stage of its source alone.
    for (const TiedParameter& parameter : tied)
      for (const std::vector<CutRule>& stage : rules)
        if (const CutRule* source = find_rule(stage, parameter.source))
          by_name.try_emplace(parameter.name, NamedRule{parameter.name, source, parameter.source});
    const std::vector<Container>& files = checkpoint.files[pp_rank];
    for (std::uint32_t i = 0; i < files.size(); ++i)
      add_source_rank(map, files[i], {i % checkpoint.tp, pp_rank, 0, i / checkpoint.tp}, checkpoint, by_name);
    for (const ShardedCheckpoint::Copy& copy : checkpoint.copies)
      if (copy.rank.pp_rank == pp_rank) add_source_rank(map, copy.file, copy.rank, checkpoint, by_name);
  }
  if (checkpoint.record) prove_originals(checkpoint, enlarged_originals(checkpoint.rules, map));
  return map;
}

}  // namespace reshard
