#include "reshard/layouts/cut.h"

#include <array>
#include <numeric>
#include <unordered_map>

#include "reshard/base/checked.h"

namespace reshard {
namespace {

using Role = CutRule::Role;

Cut::Part heads_part(std::string name, std::uint32_t heads, std::vector<std::uint32_t> taken) {
  return {std::move(name), heads, std::move(taken), {}};
}

/// Where the tensor that is split as the weight is may stand in a module: a model's own, one that PEFT has wrapped, and
/// the adapter's that has the weight's outputs (or inputs).
constexpr std::array kOutputPlaces = {"", ".base_layer", ".lora_B"};
constexpr std::array kInputPlaces = {"", ".base_layer", ".lora_A"};

/// Registers the stored names that one module's spec explains.
void add_spec_rules(const ModuleSpecs& module, const FusedLinearsSpec& spec,
                    std::unordered_map<std::string, CutRule>& rules) {
  const std::string prefix = module.module_fully_qualified_name + ".";
  const auto add = [&](const std::string& suffix, CutKind kind, Role role) {
    CutRule rule{prefix + spec.fused_linear_name + suffix, kind};
    rule.fused = &spec;
    rule.prefix = prefix;
    rule.suffix = suffix;
    rule.role = role;
    rules.emplace(rule.stored_name, rule);
  };
  const bool column = spec.fuse_axis == 0;
  for (const char* place : column ? kOutputPlaces : kInputPlaces)
    for (const char* suffix : {".weight", ".bias"}) add(std::string(place) + suffix, CutKind::kFused, Role::kFused);
  if (!spec.stacked_ranks.empty())
    add(".lora_A.weight", CutKind::kFused, Role::kStacked);
  else
    add(column ? ".lora_A.weight" : ".lora_B.weight", CutKind::kReplicated, Role::kShared);
  if (column) add(".lora_magnitude_vector", CutKind::kFused, Role::kFused);
}

void add_spec_rules(const ModuleSpecs& module, const GQAQKVColumnParallelLinearSpec& spec,
                    std::unordered_map<std::string, CutRule>& rules) {
  const std::string prefix = module.module_fully_qualified_name + ".";
  const auto add = [&](const std::string& stored_name, const std::string& suffix, CutKind kind, Role role) {
    CutRule rule{stored_name, kind};
    rule.gqa = &spec;
    rule.prefix = prefix;
    rule.suffix = suffix;
    rule.role = role;
    rules.emplace(stored_name, rule);
  };
  for (const char* place : kOutputPlaces)
    for (const char* leaf : {".weight", ".bias"}) {
      const std::string suffix = std::string(place) + leaf;
      const std::string joined = prefix + spec.gqa_qkv_projection_name + suffix;
      add(joined + "_q", suffix, CutKind::kGroupedQuery, Role::kQuery);
      add(joined + "_k", suffix, CutKind::kGroupedQuery, Role::kKey);
      add(joined + "_v", suffix, CutKind::kGroupedQuery, Role::kValue);
      add(joined + "_qkv", suffix, CutKind::kGroupedQuery, Role::kQkv);
    }
  for (const char* place : kInputPlaces) {
    const std::string suffix = std::string(place) + ".weight";
    add(prefix + spec.output_projection_name + suffix, suffix, CutKind::kGroupedQuery, Role::kOutput);
  }
  const bool stacked = !spec.stacked_ranks.empty();
  add(prefix + spec.gqa_qkv_projection_name + ".lora_A.weight", ".lora_A.weight",
      stacked ? CutKind::kFused : CutKind::kReplicated, stacked ? Role::kStacked : Role::kShared);
}

/// A rank's part of matrices packed in one, in chunks of which each matrix, and each rank's part of it, is made.
/// Experts that are matrices of it are spread over expert-parallel ranks.
Cut::Part packed_part(const ParallelParameter& parameter, std::uint32_t tp_rank, std::uint32_t tp,
                      std::uint32_t ep_rank) {
  std::uint64_t chunk = 0;
  for (const PackedPart& part : parameter.packed) chunk = std::gcd(chunk, part.replicated ? part.size : part.size / tp);
  Cut::Part cut{parameter.name, 0, {}, chunk};
  const std::size_t each = parameter.packed.size() / (parameter.partition_dim == 0 ? parameter.expert_partitions : 1);
  std::size_t number = 0;
  for (const PackedPart& part : parameter.packed) {
    const std::uint64_t chunks = part.size / chunk;
    const std::uint64_t first = part.replicated ? 0 : chunks / tp * tp_rank;
    const std::uint64_t count = part.replicated ? chunks : chunks / tp;
    const bool here = parameter.partition_dim != 0 || parameter.expert_partitions == 1 || number++ / each == ep_rank;
    for (std::uint64_t i = 0; here && i < count; ++i)
      cut.taken.push_back(static_cast<std::uint32_t>(cut.units + first + i));
    cut.units += chunks;
  }
  return cut;
}

/// A rank's chunks of a parameter that is cut into equal ones.
Cut::Part plain_part(const ParallelParameter& parameter, std::uint32_t tp_rank, std::uint32_t tp,
                     std::uint32_t ep_rank) {
  Cut::Part part{parameter.name, std::uint64_t{tp} * parameter.partition_stride, {}, {}};
  // Experts stacked along the dim that is cut are as many matrices; a rank has some of them alone.
  const std::uint32_t ranks = parameter.partition_dim == 0 ? parameter.expert_partitions : 1;
  const std::uint32_t each = parameter.partition_stride / ranks;
  for (std::uint32_t i = 0; i < each; ++i) part.taken.push_back(tp_rank + ((ranks > 1 ? ep_rank : 0) * each + i) * tp);
  return part;
}

Cut::Part placed_part(const CutRule::Placed& placed, std::uint32_t tp_rank) {
  if (!placed.placement) return {placed.logical_name, 1, {0}, {}};
  const Placement& placement = *placed.placement;
  Cut::Part part{placed.logical_name, placement.units, placement.taken[tp_rank], placement.unit_elems};
  part.lowest = placed.lowest;
  return part;
}

}  // namespace

std::uint64_t Cut::taken_units() const {
  std::uint64_t units = 0;
  for (const Part& part : parts) units += part.taken.size();
  return units;
}

std::vector<CutRule> cut_rules(const StageMetadata& metadata) {
  std::unordered_map<std::string, CutRule> by_spec;
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      std::visit([&](const auto& s) { add_spec_rules(module, s, by_spec); }, spec);
  std::vector<CutRule> rules;
  for (const ParallelParameter& parameter : metadata.parameters) {
    const auto found = by_spec.find(parameter.name);
    if (found != by_spec.end()) {
      rules.push_back(found->second);
    } else {
      const CutKind kind = !parameter.tensor_model_parallel ? CutKind::kReplicated
                           : parameter.partition_dim == 0   ? CutKind::kColumn
                                                            : CutKind::kRow;
      rules.push_back({parameter.name, kind});
    }
    rules.back().parameter = &parameter;
  }
  return rules;
}

std::vector<std::string> CutRule::linears() const {
  if (fused != nullptr) return fused->linear_names;
  return {gqa->query_projection_name, gqa->key_projection_name, gqa->value_projection_name};
}

const std::vector<std::uint64_t>& CutRule::stacked_ranks() const {
  return fused != nullptr ? fused->stacked_ranks : gqa->stacked_ranks;
}

/// Where lora_A are stacked, the lora_B of each linear meets its own rows of them alone.
void CutRule::make_diagonal(Cut& cut) const {
  const std::vector<std::uint64_t>& ranks = stacked_ranks();
  if (ranks.empty() || suffix != ".lora_B.weight") return;
  cut.diagonal_columns = std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0});
  std::size_t linear = role == Role::kKey ? 1 : role == Role::kValue ? 2 : 0;
  for (Cut::Part& part : cut.parts) {
    part.first_column = std::accumulate(ranks.begin(), ranks.begin() + linear, std::uint64_t{0});
    part.columns = ranks[linear++];
  }
}

bool CutRule::is_on(std::uint32_t ep_rank) const {
  return parameter == nullptr || parameter->expert_rank.value_or(ep_rank) == ep_rank;
}

void CutRule::add_heads(Cut& cut, std::uint32_t tp_rank) const {
  const auto add = [&](Role one, const std::string& linear, std::uint32_t heads, std::vector<std::uint32_t> taken) {
    if (role == one || role == Role::kQkv)
      cut.parts.push_back(heads_part(prefix + linear + suffix, heads, std::move(taken)));
  };
  add(Role::kQuery, gqa->query_projection_name, gqa->num_attention_heads, gqa->query_heads(tp_rank));
  add(Role::kKey, gqa->key_projection_name, gqa->num_key_value_heads, gqa->key_value_heads(tp_rank));
  add(Role::kValue, gqa->value_projection_name, gqa->num_key_value_heads, gqa->key_value_heads(tp_rank));
}

Cut CutRule::for_rank(std::uint32_t tp_rank, std::uint32_t tp, std::uint32_t ep_rank) const {
  Cut cut;
  cut.kind = kind;
  if (parameter != nullptr && (!parameter->tensor_model_parallel || parameter->partition_dim != 0)) {
    cut.stacked_parts = parameter->expert_partitions;
    cut.stacked_part = cut.stacked_parts > 1 ? ep_rank : 0;
  }
  switch (role) {
    case Role::kRankNumber: cut.constant = Cut::Constant{DType::kI32, {1}, tp_rank}; break;
    case Role::kPlaced:
      cut.dim = dim;
      for (const Placed& part : placed) cut.parts.push_back(placed_part(part, tp_rank));
      break;
    case Role::kPlain:
      cut.dim = parameter->tensor_model_parallel ? parameter->partition_dim : 0;
      cut.parts.push_back(!parameter->tensor_model_parallel ? Cut::Part{stored_name, 1, {0}, {}}
                          : parameter->packed.empty()       ? plain_part(*parameter, tp_rank, tp, ep_rank)
                                                            : packed_part(*parameter, tp_rank, tp, ep_rank));
      break;
    case Role::kFused:
      cut.dim = fused->fuse_axis;
      for (std::size_t i = 0; i < fused->linear_names.size(); ++i)
        cut.parts.push_back({prefix + fused->linear_names[i] + suffix, tp, {tp_rank}, fused->original_dims[i] / tp});
      make_diagonal(cut);
      break;
    case Role::kShared:
      for (const std::string& linear : linears()) cut.parts.push_back({prefix + linear + suffix, 1, {0}, {}});
      break;
    case Role::kStacked:
      for (const std::string& linear : linears())
        cut.parts.push_back({prefix + linear + suffix, 1, {0}, stacked_ranks()[cut.parts.size()]});
      break;
    case Role::kOutput:
      cut.dim = 1;
      cut.parts.push_back(heads_part(stored_name, gqa->num_attention_heads, gqa->query_heads(tp_rank)));
      break;
    case Role::kQuery:
    case Role::kKey:
    case Role::kValue:
    case Role::kQkv:
      add_heads(cut, tp_rank);
      make_diagonal(cut);
      break;
  }
  return cut;
}

std::optional<Dims> stored_shape(const Cut& cut, const std::vector<Dims>& logical_shapes) {
  Dims stored = logical_shapes.front();
  if (cut.stacked_parts > 1) {
    if (stored.empty() || stored[0] % cut.stacked_parts != 0 || logical_shapes.size() != 1) return std::nullopt;
    stored[0] /= cut.stacked_parts;
    Cut rest = cut;
    rest.stacked_parts = 1;
    return stored_shape(rest, {stored});
  }
  if (cut.kind == CutKind::kReplicated) return stored;
  if (cut.dim >= stored.size()) return std::nullopt;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < cut.parts.size(); ++i) {
    const Cut::Part& part = cut.parts[i];
    Dims shape = logical_shapes[i];
    if (shape.size() != stored.size() || shape[cut.dim] % part.units != 0) return std::nullopt;
    const std::uint64_t unit = shape[cut.dim] / part.units;
    if (part.unit_elems && *part.unit_elems != unit) return std::nullopt;
    size += unit * part.taken.size();
    if (cut.diagonal_columns != 0) {
      if (shape.size() != 2 || shape[1] != part.columns) return std::nullopt;
      continue;
    }
    shape[cut.dim] = stored[cut.dim];
    if (shape != stored) return std::nullopt;
  }
  stored[cut.dim] = size;
  if (cut.diagonal_columns != 0) stored[1] = cut.diagonal_columns;
  return stored;
}

std::optional<std::vector<Dims>> logical_shapes(const Cut& cut, const Dims& stored) {
  if (cut.constant) return stored == cut.constant->shape ? std::optional(std::vector<Dims>{}) : std::nullopt;
  if (cut.stacked_parts > 1) {
    const auto rows = stored.empty() ? std::nullopt : checked_mul(stored[0], cut.stacked_parts);
    if (!rows) return std::nullopt;
    Cut rest = cut;
    rest.stacked_parts = 1;
    Dims whole = stored;
    whole[0] = *rows;
    return logical_shapes(rest, whole);
  }
  if (cut.kind == CutKind::kReplicated) return std::vector<Dims>(cut.parts.size(), stored);
  if (cut.dim >= stored.size()) return std::nullopt;
  const bool diagonal = cut.diagonal_columns != 0;
  if (diagonal && (stored.size() != 2 || stored[1] != cut.diagonal_columns)) return std::nullopt;
  const std::uint64_t size = stored[cut.dim];
  std::uint64_t accounted = 0;
  std::vector<Dims> shapes;
  for (const Cut::Part& part : cut.parts) {
    if (!part.unit_elems && size % cut.taken_units() != 0) return std::nullopt;
    const std::uint64_t unit = part.unit_elems ? *part.unit_elems : size / cut.taken_units();
    if (unit == 0 && size != 0) return std::nullopt;  // an original without elements beside one that has some
    const auto full = checked_mul(unit, part.units);
    const auto taken = checked_mul(unit, part.taken.size());
    const auto sum = taken ? checked_add(accounted, *taken) : std::nullopt;
    if (!full || !sum) return std::nullopt;
    accounted = *sum;
    Dims shape = stored;
    shape[cut.dim] = *full;
    if (diagonal) shape[1] = part.columns;
    shapes.push_back(std::move(shape));
  }
  if (accounted != size) return std::nullopt;
  return shapes;
}

}  // namespace reshard
