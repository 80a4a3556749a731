#include "reshard/layouts/cut.h"

#include <numeric>
#include <unordered_map>

#include "reshard/base/checked.h"

namespace reshard {
namespace {

Cut::Part heads_part(std::string name, std::uint32_t heads, std::vector<std::uint32_t> taken) {
  return {std::move(name), heads, std::move(taken), {}};
}

/// Registers the stored names that one module's spec explains.
void add_spec_rules(const ModuleSpecs& module, const FusedLinearsSpec& spec,
                    std::unordered_map<std::string, CutRule>& rules) {
  const std::string prefix = module.module_fully_qualified_name + ".";
  for (const char* suffix : {".weight", ".bias"}) {
    CutRule rule{prefix + spec.fused_linear_name + suffix, CutKind::kFused};
    rule.fused = &spec;
    rule.prefix = prefix;
    rule.suffix = suffix;
    rule.role = CutRule::Role::kFused;
    rules.emplace(rule.stored_name, rule);
  }
}

void add_spec_rules(const ModuleSpecs& module, const GQAQKVColumnParallelLinearSpec& spec,
                    std::unordered_map<std::string, CutRule>& rules) {
  using Role = CutRule::Role;
  const std::string prefix = module.module_fully_qualified_name + ".";
  const auto add = [&](const std::string& stored_name, const char* suffix, Role role) {
    CutRule rule{stored_name, CutKind::kGroupedQuery};
    rule.gqa = &spec;
    rule.prefix = prefix;
    rule.suffix = suffix;
    rule.role = role;
    rules.emplace(stored_name, rule);
  };
  for (const char* suffix : {".weight", ".bias"}) {
    const std::string joined = prefix + spec.gqa_qkv_projection_name + suffix;
    add(joined + "_q", suffix, Role::kQuery);
    add(joined + "_k", suffix, Role::kKey);
    add(joined + "_v", suffix, Role::kValue);
    add(joined + "_qkv", suffix, Role::kQkv);
  }
  add(prefix + spec.output_projection_name + ".weight", ".weight", Role::kOutput);
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

Cut CutRule::for_rank(std::uint32_t tp_rank, std::uint32_t tp) const {
  Cut cut;
  cut.kind = kind;
  switch (role) {
    case Role::kPlain: {
      if (!parameter->tensor_model_parallel) {
        cut.parts.push_back({stored_name, 1, {0}, {}});
        break;
      }
      cut.dim = parameter->partition_dim;
      Cut::Part part{stored_name, std::uint64_t{tp} * parameter->partition_stride, {}, {}};
      for (std::uint32_t i = 0; i < parameter->partition_stride; ++i) part.taken.push_back(tp_rank + i * tp);
      cut.parts.push_back(std::move(part));
      break;
    }
    case Role::kFused:
      cut.dim = fused->fuse_axis;
      for (std::size_t i = 0; i < fused->linear_names.size(); ++i)
        cut.parts.push_back({prefix + fused->linear_names[i] + suffix, tp, {tp_rank}, fused->original_dims[i] / tp});
      break;
    case Role::kOutput:
      cut.dim = 1;
      cut.parts.push_back(heads_part(stored_name, gqa->num_attention_heads, gqa->query_heads(tp_rank)));
      break;
    case Role::kQuery:
    case Role::kKey:
    case Role::kValue:
    case Role::kQkv:
      if (role == Role::kQuery || role == Role::kQkv)
        cut.parts.push_back(heads_part(prefix + gqa->query_projection_name + suffix, gqa->num_attention_heads,
                                       gqa->query_heads(tp_rank)));
      if (role == Role::kKey || role == Role::kQkv)
        cut.parts.push_back(heads_part(prefix + gqa->key_projection_name + suffix, gqa->num_key_value_heads,
                                       gqa->key_value_heads(tp_rank)));
      if (role == Role::kValue || role == Role::kQkv)
        cut.parts.push_back(heads_part(prefix + gqa->value_projection_name + suffix, gqa->num_key_value_heads,
                                       gqa->key_value_heads(tp_rank)));
      break;
  }
  return cut;
}

std::optional<Dims> stored_shape(const Cut& cut, const std::vector<Dims>& logical_shapes) {
  Dims stored = logical_shapes.front();
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
    shape[cut.dim] = stored[cut.dim];
    if (shape != stored) return std::nullopt;
  }
  stored[cut.dim] = size;
  return stored;
}

std::optional<std::vector<Dims>> logical_shapes(const Cut& cut, const Dims& stored) {
  if (cut.kind == CutKind::kReplicated) return std::vector<Dims>{stored};
  if (cut.dim >= stored.size()) return std::nullopt;
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
    shapes.push_back(std::move(shape));
  }
  if (accounted != size) return std::nullopt;
  return shapes;
}

}  // namespace reshard
