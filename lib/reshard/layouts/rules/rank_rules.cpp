#include "reshard/layouts/rules/rank_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

using Heads = SchemeEntry::Heads;

constexpr const char* kExpertAxis = "expert";
constexpr std::uint64_t kOneF32 = 0x3F80'0000;

constexpr std::uint64_t kMostRows = std::uint64_t{1} << 32;  // bounds multiples, so that rounding cannot overflow

bool has_experts(const SchemeEntry& rule) {
  return std::any_of(rule.entry_dims.begin(), rule.entry_dims.end(),
                     [](const auto& axes) { return axes.front() == kExpertAxis; });
}

/// Returns the roles of parameter number `part` of an entry.
std::vector<Heads> roles_of(const SchemeEntry& rule, std::size_t part) {
  if (rule.parameters.size() == 1) return rule.ranks.heads;
  return {rule.ranks.heads.size() == 1 ? rule.ranks.heads.front() : rule.ranks.heads.at(part)};
}

/// Returns the dim of a parameter of an entry that ranks split; std::nullopt if each rank has all of it.
std::optional<std::uint32_t> split_dim(const SchemeEntry& rule, const ModelParameter& parameter) {
  return rule.ranks.dim ? rule.ranks.dim : parameter.split_dim;
}

/// Returns the dim in `dims` that each dim of an entry is; empty if the order is the same.
Dims order_of(const DimAxes& entry_dims, const std::vector<std::string>& dims) {
  Dims order;
  for (const std::vector<std::string>& axes : entry_dims)
    order.push_back(static_cast<std::uint64_t>(std::find(dims.begin(), dims.end(), axes.back()) - dims.begin()));
  return std::is_sorted(order.begin(), order.end()) ? Dims() : order;
}

/// Returns the share of an entry.
/// \throws Error kBadInput if the layout has no such share.
template <typename Share>
const Share& found_share(const std::map<std::string, Share, std::less<>>& shares, const SchemeEntry& entry) {
  const auto found = shares.find(entry.ranks.share);
  if (found != shares.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, share] : shares)
    if (!name.empty()) known.push_back(name);
  throw Error(ErrorKind::kBadInput, fmt::format("\"share\" is \"{}\", which the layout does not have ({})",
                                                printable(entry.ranks.share), entry.where))
      .hint("ways to share such an entry are " + join(known, ", "));
}

void validate_divides(const ModelParameter& parameter, std::uint64_t size, std::uint32_t parts) {
  if (size % parts == 0) return;
  throw Error(ErrorKind::kUsage, fmt::format("an expert has a size of {}, which {} ranks do not divide", size, parts))
      .tensor(parameter.name)
      .hint("choose a number of ranks that divides it");
}

PartitionLabel label_of(std::uint32_t dim) {
  return dim == 0 ? PartitionLabel::kColumn : PartitionLabel::kRow;
}

}  // namespace

HeadCounts head_counts(const Model& model, const WrittenNames& names) {
  HeadCounts counts{static_cast<std::uint32_t>(model.heads), static_cast<std::uint32_t>(model.kv_heads),
                    model.head_dim};
  if (counts.query != 0) return counts;
  std::unordered_map<std::string_view, const ModelParameter*> by_name;
  for (const ModelParameter& parameter : model.parameters) by_name.emplace(parameter.name, &parameter);
  std::uint64_t query_rows = 0;
  for (const WrittenNames::Entry& entry : names.entries())
    for (std::size_t t = 0; t < entry.tensors.size() && entry.constant == nullptr; ++t) {
      if (entry.rule->ranks.heads.empty()) continue;
      const ModelParameter& parameter = *by_name.at(entry.tensors[t]);
      const std::vector<Heads> roles = roles_of(*entry.rule, t % entry.rule->parameters.size());
      if (parameter.heads == 0 || parameter.split_dim != 0u || parameter.shape.size() != 2) continue;
      for (std::size_t r = 0; r < roles.size(); ++r) {
        const std::size_t matrix = roles.size() == 1 ? static_cast<std::size_t>(roles[r]) : r;
        const std::uint64_t rows = parameter.packed.empty() ? parameter.shape[0] : parameter.packed.at(matrix).size;
        if (roles[r] == Heads::kQuery) query_rows = rows;
        if (roles[r] != Heads::kKey) continue;
        counts.key_value = static_cast<std::uint32_t>(parameter.heads);
        counts.dim = rows / parameter.heads;
      }
    }
  if (counts.dim != 0) counts.query = static_cast<std::uint32_t>(query_rows / counts.dim);
  return counts;
}

RankRules::RankRules(const Model& model, const WrittenNames& names, const RankShares& shares, std::uint32_t ranks)
    : names_(names), shares_(shares), ranks_(ranks), heads_(head_counts(model, names)), rules_(ranks) {
  for (const ModelParameter& one : model.parameters) by_name_.emplace(one.name, &one);
}

std::vector<PartitionRule> RankRules::run(const HoldsName& holds) && {
  std::optional<Added> last;
  for (const WrittenNames::Entry& entry : names_.entries())
    if (entry.constant == nullptr)
      last = is_held(entry, holds) ? std::optional(add(entry)) : std::nullopt;
    else if (last)
      add_constant(entry, *last);
  std::vector<PartitionRule> rules = std::move(rules_).take();
  for (PartitionRule& rule : rules)
    for (PartitionRule::Part& part : rule.parts)
      if (const auto change = changes_.find(part.logical_name); change != changes_.end()) part.changed = change->second;
  return rules;
}

/// Returns tensor `index` of an entry: a parameter, or the tensor that follows from it (SchemeEntry::changes).
const ModelParameter& RankRules::tensor(const WrittenNames::Entry& entry, std::size_t index) {
  const ModelParameter& own = parameter(entry.tensors[index]);
  const SchemeEntry& rule = *entry.rule;
  if (rule.changes.empty()) return own;
  const SchemeEntry::Change& listed = rule.changes[index % rule.changes.size()];
  ValueChange change = listed.values;
  const std::uint32_t parts = has_experts(rule) ? found_share(shares_.experts, rule).parts : share_of(entry).parts;
  if (change.divisor == 0) change.divisor = parts;
  if (listed.order) {
    try {
      change.arrangement = listed.order->arrangement(own.shape, padded_shape(own, padded_shapes(rule)), parts);
    } catch (Error& error) {
      throw error.tensor(own.name);
    }
  }
  const std::string name = change.name_of(own.name);
  if (const auto known = by_name_.find(name); known != by_name_.end()) {
    const auto other = changes_.find(name);
    if (other != changes_.end() && change.arrangement &&
        other->second->change.arrangement->key() != change.arrangement->key())
      throw Error(ErrorKind::kBadInput, fmt::format("has two orders with one shape ({})", rule.where)).tensor(own.name);
    return *known->second;
  }
  if (own.shape.empty() || own.shape.back() % change.step != 0)
    throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, which has no {} ({})", to_string(own.shape),
                                                  change.name_of(""), rule.where))
        .tensor(own.name);
  ModelParameter& made = changed_.emplace_back(own);
  made.name = name;
  made.shape = change.shape_of(own.shape);
  made.packed.clear();
  made.heads = 0;
  changes_.emplace(name, std::make_shared<const PartitionRule::Changed>(PartitionRule::Changed{own.name, change}));
  by_name_.emplace(made.name, &made);
  return made;
}

const PaddedShapes& RankRules::padded_shapes(const SchemeEntry& rule) const {
  return has_experts(rule) ? found_share(shares_.experts, rule).padded_shapes
                           : found_share(shares_.usual, rule).padded_shapes;
}

Dims RankRules::padded_shape(const ModelParameter& tensor, const PaddedShapes& shapes) const {
  const auto change = changes_.find(tensor.name);
  if (shapes == nullptr || (change != changes_.end() && change->second->change.arrangement)) return tensor.shape;
  const auto found = shapes->find(change == changes_.end() ? tensor.name : change->second->parameter);
  if (found == shapes->end()) return tensor.shape;
  return change == changes_.end() ? found->second : change->second->change.shape_of(found->second);
}

/// Returns the size to which a dim that ranks split is padded.
std::uint64_t RankRules::padded_size(const SchemeEntry& rule, const ModelParameter& tensor, std::uint32_t dim) const {
  const RankShare& share = found_share(shares_.usual, rule);
  ModelParameter sized = tensor;
  sized.shape = padded_shape(tensor, share.padded_shapes);
  const std::uint64_t size = dim == tensor.split_dim ? shares_.padded(sized, share.parts)
                                                     : rounded_up(sized.shape[dim], std::uint64_t{share.parts});
  if (rule.ranks.multiple > kMostRows)
    throw Error(ErrorKind::kUsage,
                fmt::format("a multiple of {} rows is more than any matrix has", rule.ranks.multiple))
        .tensor(tensor.name);
  return rule.ranks.multiple == 1 ? size : rounded_up(size, std::lcm(rule.ranks.multiple, std::uint64_t{share.parts}));
}

/// Counts the chunks of a table with `each` for each rank, which padding can make any number.
/// \throws Error kUsage if there are more than any model has.
void RankRules::count_chunks(const std::string& parameter, std::uint64_t each, std::uint64_t ranks) {
  chunks_ += std::min(each, kMaxChunks) * ranks;
  if (chunks_ > kMaxChunks)
    throw Error(ErrorKind::kUsage, "its padded size makes more chunks over the ranks than any model has")
        .tensor(parameter)
        .hint("choose a smaller padded size, or a multiple of the model's own size");
}

/// Pads the dims that ranks have whole.
void RankRules::pad(const SchemeEntry& rule, PartitionRule& made) {
  const PaddedShapes& shapes = padded_shapes(rule);
  if (shapes == nullptr) return;
  for (PartitionRule::Part& part : made.parts) {
    const Dims &shape = parameter(part.logical_name).shape, padded = padded_shape(parameter(part.logical_name), shapes);
    for (std::uint32_t dim = 0; dim < shape.size(); ++dim) {
      const auto at = std::find_if(part.placed.begin(), part.placed.end(),
                                   [&](const PartitionRule::PlacedDim& placed) { return placed.dim >= dim; });
      if (padded[dim] == shape[dim] || (at != part.placed.end() && at->dim == dim)) continue;
      Table& table = tables_[{nullptr, {shape[dim], padded[dim]}}];
      if (!table) {
        const std::uint64_t unit = std::gcd(shape[dim], padded[dim]);
        count_chunks(part.logical_name, padded[dim] / unit, 1);
        Placement placement{shape[dim] / unit, unit, {std::vector<std::uint32_t>(padded[dim] / unit)}};
        std::iota(placement.taken.front().begin(), placement.taken.front().end(), 0U);
        table = std::make_shared<const Placement>(std::move(placement));
      }
      part.placed.insert(at, {dim, table});
    }
  }
}

bool RankRules::is_held(const WrittenNames::Entry& entry, const HoldsName& holds) const {
  return std::any_of(entry.tensors.begin(), entry.tensors.end(), [&](const std::string& name) {
    const ModelParameter& one = parameter(name);
    return one.shape_known != ShapeKnown::kNot && (!one.optional || holds(name) || holds(entry.name));
  });
}

const RankShare& RankRules::share_of(const WrittenNames::Entry& entry) const {
  if (const auto outside = shares_.usual.find(kOutsideLayers);
      outside != shares_.usual.end() && entry.rule->ranks.share.empty() && !parameter(entry.tensors.front()).layer)
    return outside->second;
  return found_share(shares_.usual, *entry.rule);
}

RankRules::Added RankRules::add(const WrittenNames::Entry& entry) {
  const SchemeEntry& rule = *entry.rule;
  for (std::size_t t = 0; t < entry.tensors.size(); ++t) {
    const ModelParameter& one = tensor(entry, t);
    const auto split = split_dim(rule, one);
    if (split && *split >= one.shape.size())
      throw Error(ErrorKind::kBadInput,
                  fmt::format("has {} dims, and \"split\" is {} ({})", one.shape.size(), *split, rule.where))
          .tensor(one.name);
  }
  const ModelParameter& first = tensor(entry, 0);
  Added added{.experts = first.experts};
  if (has_experts(rule)) {
    add_experts(entry);
    return added;
  }
  if (!rule.ranks.heads.empty()) {
    add_heads(entry);
    return added;
  }
  const auto dim = split_dim(rule, first);
  if (dim) {
    added.size = first.shape[*dim];
    added.padded = padded_size(rule, first, *dim);
  }
  if (entry.tensors.size() == 1 && rule.ranks.share.empty() && share_of(entry).parts == ranks_) {
    finish(entry, rules_.add(first, entry.name, dim, added.padded));
    return added;
  }
  const RankShare& share = share_of(entry);
  Parts parts;
  for (std::size_t t = 0; t < entry.tensors.size(); ++t) {
    const ModelParameter& one = tensor(entry, t);
    parts.push_back({one.name, {}, one.is_bias});
    if (dim) parts.back().placed = {{*dim, even_table(one, *dim, padded_size(rule, one, *dim), share)}};
  }
  const PartitionLabel label = parts.size() > 1 ? PartitionLabel::kFused
                               : dim            ? label_of(*dim)
                                                : PartitionLabel::kReplicated;
  finish(entry, rules_.add_placed(entry.name, label, dim.value_or(0), std::move(parts)));
  return added;
}

void RankRules::finish(const WrittenNames::Entry& entry, PartitionRule& rule) {
  pad(*entry.rule, rule);
  rule.kernel = entry.rule->ranks.kernel;
  std::vector<std::string> dims;
  for (const std::vector<std::string>& axes : entry.rule->parameter_dims) dims.push_back(axes.back());
  rule.file_dims = order_of(entry.rule->entry_dims, dims);
}

RankRules::Table RankRules::even_table(const ModelParameter& parameter, std::uint32_t dim, std::uint64_t padded,
                                       const RankShare& share) {
  const std::uint64_t size = parameter.shape[dim];
  Table& table = tables_[{&share, {size, padded}}];
  if (table) return table;
  const std::uint64_t each = padded / share.parts;
  const std::uint64_t unit = std::max<std::uint64_t>(std::gcd(size, each), 1);
  count_chunks(parameter.name, each / unit, share.of_rank.size());
  Placement placement{size / unit, unit, {}};
  for (const std::uint32_t part : share.of_rank) {
    std::vector<std::uint32_t>& taken = placement.taken.emplace_back(each / unit);
    std::iota(taken.begin(), taken.end(), static_cast<std::uint32_t>(part * (each / unit)));
    if (part >= share.parts) std::fill(taken.begin(), taken.end(), static_cast<std::uint32_t>(placement.units));
  }
  table = std::make_shared<const Placement>(std::move(placement));
  return table;
}

RankRules::Table RankRules::heads_table(const ModelParameter& parameter, const std::vector<Heads>& roles,
                                        std::uint32_t dim, const RankShare& share) {
  std::uint64_t units = 0;
  std::vector<std::uint64_t> begins;
  const auto count_of = [&](Heads role) { return role == Heads::kQuery ? heads_.query : heads_.key_value; };
  for (const Heads role : roles) {
    begins.push_back(units);
    units += count_of(role);
  }
  // One role of a parameter that packs all three is a part of it.
  const bool is_one_of_packed = roles.size() == 1 && parameter.packed.size() == 3;
  if (is_one_of_packed) {
    units = heads_.query + std::uint64_t{2} * heads_.key_value;
    begins = {roles.front() == Heads::kQuery ? 0
              : roles.front() == Heads::kKey ? heads_.query
                                             : heads_.query + heads_.key_value};
  }
  if (units == 0 || parameter.shape[dim] % units != 0)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("dim {} has {} elements, which are not {} heads", dim, parameter.shape[dim], units))
        .tensor(parameter.name)
        .hint("choose a layout that keeps the checkpoint's names");
  Placement placement{units, parameter.shape[dim] / units, {}};
  for (const std::uint32_t part : share.of_rank) {
    std::vector<std::uint32_t>& taken = placement.taken.emplace_back();
    for (std::size_t r = 0; r < roles.size(); ++r) {
      const auto& slots = roles[r] == Heads::kQuery ? share.slots.query : share.slots.key_value;
      const std::size_t each = slots.size() / share.parts;
      for (std::size_t i = part * each; i < (part + 1) * each; ++i)
        taken.push_back(static_cast<std::uint32_t>(slots[i] >= count_of(roles[r]) ? units : begins[r] + slots[i]));
    }
  }
  return std::make_shared<const Placement>(std::move(placement));
}

/// Adds an entry in which the parameters' heads alternate: the first head of each, then the second of each. Where there
/// are several query heads to a key head, they stand for one.
void RankRules::add_alternating(const WrittenNames::Entry& entry) {
  const RankShare& share = share_of(entry);
  const std::uint32_t dim = parameter(entry.tensors.front()).split_dim.value_or(0);
  const auto slots_of = [&](std::size_t t) -> const std::vector<std::uint32_t>& {
    return roles_of(*entry.rule, t).front() == Heads::kQuery ? share.slots.query : share.slots.key_value;
  };
  std::size_t groups = SIZE_MAX;
  for (std::size_t t = 0; t < entry.tensors.size(); ++t) groups = std::min(groups, slots_of(t).size());
  Parts parts;
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t t = 0; t < entry.tensors.size(); ++t) {
      const ModelParameter& one = parameter(entry.tensors[t]);
      const auto own =
          std::span(slots_of(t)).subspan(group * (slots_of(t).size() / groups), slots_of(t).size() / groups);
      const std::uint64_t heads = roles_of(*entry.rule, t).front() == Heads::kQuery ? heads_.query : heads_.key_value;
      Table& table = tables_[{entry.rule, {group, one.shape[dim], t}}];
      if (!table) {
        Placement placement{heads, one.shape[dim] / heads, {}};
        for (const std::uint32_t part : share.of_rank) {
          const bool is_own = part == group / (groups / share.parts);
          placement.taken.emplace_back(own.begin(), is_own ? own.end() : own.begin());
        }
        table = std::make_shared<const Placement>(std::move(placement));
      }
      parts.push_back({one.name, {{dim, table}}});
    }
  finish(entry, rules_.add_placed(entry.name, PartitionLabel::kGroupedQuery, dim, std::move(parts)));
}

void RankRules::add_heads(const WrittenNames::Entry& entry) {
  const bool alternates =
      std::any_of(entry.rule->entry_dims.begin(), entry.rule->entry_dims.end(),
                  [&](const auto& dim) { return dim.size() > 1 && dim.back() == entry.rule->joined; });
  if (alternates) return add_alternating(entry);
  const RankShare& share = share_of(entry);
  Parts parts;
  std::uint32_t stack_dim = 0;
  for (std::size_t t = 0; t < entry.tensors.size(); ++t) {
    const ModelParameter& one = tensor(entry, t);
    const auto dim = split_dim(*entry.rule, one);
    parts.push_back({one.name});
    if (!dim) continue;
    stack_dim = *dim;
    Table& table = tables_[{entry.rule, {*dim, one.shape[*dim], t}}];
    if (!table) table = heads_table(one, roles_of(*entry.rule, t), *dim, share);
    parts.back().placed = {{*dim, table}};
  }
  if (parts.size() == 1 && parts.front().placed.empty()) {
    pad(*entry.rule, rules_.add_whole(entry.name, parts.front().logical_name));
    return;
  }
  finish(entry, rules_.add_placed(entry.name, PartitionLabel::kGroupedQuery, stack_dim, std::move(parts)));
}

namespace {

/// Returns the group of ranks that has an expert. Groups have consecutive experts; the first ones have one more if
/// necessary.
std::uint64_t group_of(std::uint64_t expert, std::uint64_t experts, const ExpertShare& share) {
  const std::uint64_t each = experts / share.groups, more = experts % share.groups;
  return expert < more * (each + 1) ? expert / (each + 1) : (expert - more) / each;
}

/// Returns the experts of which a rank has a part.
std::vector<std::uint64_t> experts_on(std::uint32_t rank, std::uint64_t experts, const ExpertShare& share) {
  std::vector<std::uint64_t> own;
  for (std::uint64_t expert = 0; expert < experts; ++expert)
    if (group_of(expert, experts, share) == rank / share.parts % share.groups) own.push_back(expert);
  return own;
}

}  // namespace

/// A dim that ranks share equally, or have whole.
struct RankRules::ExpertPart {
  const ModelParameter& parameter;
  std::uint64_t size = 0;              // of one expert
  std::uint64_t padded = 0;            // before ranks share it
  std::optional<std::uint64_t> group;  // of ranks that have it; std::nullopt: all
  std::uint64_t begin = 0, count = 1;  // experts that the dim contains, and the number of the one that is meant
  bool is_whole = false;               // ranks that have it have all
};

RankRules::Table RankRules::part_table(const ExpertPart& part, const ExpertShare& share) {
  const std::uint64_t padded = part.is_whole ? part.size : rounded_up(part.padded, share.multiple);
  const std::uint32_t parts = part.is_whole ? 1 : share.parts;
  validate_divides(part.parameter, padded, parts);
  const std::uint64_t each = padded / parts, stored = part.is_whole ? each : rounded_up(each, share.rounding);
  const std::uint64_t unit = std::gcd(std::gcd(part.size, each), stored), size = part.size / unit;
  count_chunks(part.parameter.name, stored / unit, ranks_);
  Placement placement{part.count * size, unit, {}};
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    std::vector<std::uint32_t>& taken = placement.taken.emplace_back();
    if (part.group && *part.group != rank / share.parts % share.groups) continue;
    for (std::uint64_t i = 0; i < stored / unit; ++i) {
      const std::uint64_t own = rank % parts * (each / unit) + i;
      const bool is_padding = i >= each / unit || own >= size;
      taken.push_back(static_cast<std::uint32_t>(is_padding ? placement.units : part.begin * size + own));
    }
  }
  return std::make_shared<const Placement>(std::move(placement));
}

/// Returns part_table, one for all parts that are alike.
RankRules::Table RankRules::shared_part_table(const ExpertPart& part, const ExpertShare& share) {
  constexpr std::uint64_t kAllGroups = UINT64_MAX;
  Table& table = tables_[{
      &share, {part.size, part.padded, part.group.value_or(kAllGroups), part.begin, part.count * 2 + part.is_whole}}];
  if (!table) table = part_table(part, share);
  return table;
}

/// Returns the experts of each rank along a dim of experts.
RankRules::Table RankRules::group_table(std::uint64_t experts, const ExpertShare& share) const {
  Placement placement{experts, 1, {}};
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::vector<std::uint64_t> own = experts_on(rank, experts, share);
    placement.taken.emplace_back(own.begin(), own.end());
  }
  return std::make_shared<const Placement>(std::move(placement));
}

/// Returns the part of each of several matrices in a dim, one after another.
RankRules::Table RankRules::packed_table(const ModelParameter& parameter, const ExpertShare& share) const {
  std::uint64_t unit = 0, size = 0;
  for (const PackedPart& part : parameter.packed) {
    validate_divides(parameter, part.size, share.parts);
    unit = std::gcd(unit, part.size / share.parts);
    size += part.size;
  }
  Placement placement{size / unit, unit, {}};
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    std::vector<std::uint32_t>& taken = placement.taken.emplace_back();
    std::uint64_t begin = 0;
    for (const PackedPart& part : parameter.packed) {
      const std::uint64_t each = part.size / share.parts / unit;
      for (std::uint64_t i = 0; i < each; ++i)
        taken.push_back(static_cast<std::uint32_t>(begin + rank % share.parts * each + i));
      begin += part.size / unit;
    }
  }
  return std::make_shared<const Placement>(std::move(placement));
}

namespace {

/// The dims of an entry that contains experts.
struct ExpertDims {
  std::vector<std::string> names;  // those of a parameter, with that of experts before the dim `slice`
  std::uint32_t stack = 0;         // along which parameters, or the experts in one, follow each other
  std::uint32_t slice = 0;         // behind the dim of experts in the file
  bool has_own = false;            // experts are a dim of the parameters
};

ExpertDims expert_dims(const SchemeEntry& rule) {
  ExpertDims dims;
  for (const std::vector<std::string>& axes : rule.parameter_dims) {
    dims.has_own = dims.has_own || (axes.front() == kExpertAxis && axes.size() == 1);
    if (axes.back() == rule.joined || (axes.front() == kExpertAxis && axes.size() > 1))
      dims.stack = static_cast<std::uint32_t>(dims.names.size());
    dims.names.push_back(axes.back());
  }
  if (dims.has_own) return dims;
  const std::vector<std::string>& names = dims.names;
  for (std::size_t d = 0; d + 1 < rule.entry_dims.size(); ++d)
    if (rule.entry_dims[d].front() == kExpertAxis)
      dims.slice = static_cast<std::uint32_t>(std::find(names.begin(), names.end(), rule.entry_dims[d + 1].back()) -
                                              names.begin());
  dims.names.insert(dims.names.begin() + dims.slice, kExpertAxis);
  return dims;
}

}  // namespace

/// Returns a parameter of which experts are a dim.
PartitionRule::Part RankRules::part_with_experts(const ModelParameter& one, std::optional<std::uint32_t> dim,
                                                 const ExpertShare& share) {
  PartitionRule::Part part{one.name};
  if (share.groups > 1) part.placed.push_back({0, group_table(one.experts, share)});
  if (!dim) return part;
  const std::uint64_t padded = padded_shape(one, share.padded_shapes)[*dim];
  part.placed.push_back(
      {*dim, one.packed.empty() ? shared_part_table({one, one.shape[*dim], padded}, share) : packed_table(one, share)});
  return part;
}

/// Returns one expert: a parameter of its own, or one of those that follow each other along `dim` of a parameter.
PartitionRule::Part RankRules::part_of_expert(const ModelParameter& one, std::uint64_t expert, bool is_named,
                                              std::uint32_t dim, bool is_whole, const ExpertShare& share) {
  ExpertPart part{one, one.shape[dim], padded_shape(one, share.padded_shapes)[dim]};
  part.group = group_of(expert, one.experts, share);
  part.is_whole = is_whole;
  if (!is_named) {
    part.size = part.padded = one.shape[dim] / one.experts;
    part.begin = expert;
    part.count = one.experts;
  }
  PartitionRule::Part made{one.name, {{dim, shared_part_table(part, share)}}};
  made.slice = static_cast<std::uint32_t>(expert);
  return made;
}

void RankRules::add_experts(const WrittenNames::Entry& entry) {
  const SchemeEntry& rule = *entry.rule;
  const ExpertShare& share = found_share(shares_.experts, rule);
  const ModelParameter& first = parameter(entry.tensors.front());
  const std::size_t each = rule.parameters.size();
  const bool is_named = !rule.numbered_dims().empty();
  ExpertDims dims = expert_dims(rule);
  Parts parts;
  for (std::uint64_t expert = 0; expert < (dims.has_own ? 1 : first.experts); ++expert)
    for (std::size_t p = 0; p < each; ++p) {
      const ModelParameter& one = tensor(entry, is_named ? expert * each + p : p);
      if (one.experts != first.experts)
        throw Error(ErrorKind::kBadInput, fmt::format("has {} experts, and {} has {} ({})", one.experts, first.name,
                                                      first.experts, rule.where))
            .tensor(one.name);
      const auto dim = split_dim(rule, one);
      parts.push_back(dims.has_own ? part_with_experts(one, dim, share)
                                   : part_of_expert(one, expert, is_named, dim.value_or(dims.stack), !dim, share));
    }
  const std::uint32_t dim = split_dim(rule, first).value_or(0);
  const PartitionLabel label = each > 1                           ? PartitionLabel::kFused
                               : first.split_dim || !dims.has_own ? label_of(dim)
                                                                  : PartitionLabel::kReplicated;
  PartitionRule& made = rules_.add_placed(entry.name, label, dims.has_own ? dim : dims.stack, std::move(parts));
  pad(rule, made);
  made.slice_dim = dims.slice;
  made.expert_parallel = share.groups > 1;
  made.kernel = rule.ranks.kernel;
  made.file_dims = order_of(rule.entry_dims, dims.names);
}

void RankRules::add_mask(const WrittenNames::Entry& entry, const Added& to) {
  const std::uint64_t parts = entry.constant->value == SchemeEntry::Constant::Value::kMaskPart ? ranks_ : 1;
  count_chunks(entry.name, to.padded, 1);
  std::vector<std::vector<std::uint64_t>> values;
  for (std::uint64_t i = 0; i < to.padded; ++i) {
    if (i % (to.padded / parts) == 0) values.emplace_back();
    values.back().push_back(i < to.size ? 0 : lowest_bits(shares_.dtype));
  }
  rules_.add_constant(entry.name, shares_.dtype, {to.padded / parts}, std::move(values));
}

void RankRules::add_constant(const WrittenNames::Entry& entry, const Added& to) {
  const auto by_rank = [&](auto&& values) {
    std::vector<std::vector<std::uint64_t>> all;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) all.push_back(values(rank));
    return all;
  };
  using Value = SchemeEntry::Constant::Value;
  const Value value = entry.constant->value;
  if (value == Value::kOne) return rules_.add_constant(entry.name, DType::kF32, {}, {{kOneF32}});
  if (value == Value::kRank) {
    const auto outside = shares_.usual.find(kOutsideLayers);
    if (outside == shares_.usual.end()) return rules_.add_rank_number(entry.name);
    return rules_.add_constant(entry.name, DType::kI32, {1}, by_rank([&](std::uint32_t rank) {
                                 return std::vector<std::uint64_t>{rank % outside->second.parts};
                               }));
  }
  if (value == Value::kMask || value == Value::kMaskPart) return add_mask(entry, to);
  const ExpertShare& share = found_share(shares_.experts, *entry.rule);
  if (share.groups == 1) return;
  if (value == Value::kLocalExperts)
    return rules_.add_constant(entry.name, DType::kI32, {1, to.experts / share.groups},
                               by_rank([&](std::uint32_t rank) { return experts_on(rank, to.experts, share); }));
  rules_.add_constant(entry.name, DType::kI32, {to.experts}, by_rank([&](std::uint32_t rank) {
                        constexpr std::uint64_t kElsewhere = 0xFFFF'FFFF;
                        std::vector<std::uint64_t> places(to.experts, kElsewhere);
                        std::uint64_t count = 0;
                        for (const std::uint64_t expert : experts_on(rank, to.experts, share)) places[expert] = count++;
                        return places;
                      }));
}

}  // namespace reshard
