#include "reshard/layouts/rules/metadata_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "reshard/base/error.h"

namespace reshard {
namespace {

using Part = PartitionRule::Part;
using Table = std::shared_ptr<const Placement>;

/// Suffixes in a module of the tensor that is split like the weight: the model's own, one that PEFT has wrapped, and
/// the adapter matrix that has the weight's outputs (or inputs).
constexpr std::array kOutputPlaces = {"", ".base_layer", ".lora_B"};
constexpr std::array kInputPlaces = {"", ".base_layer", ".lora_A"};
constexpr const char* kLoraAWeight = ".lora_A.weight";
constexpr const char* kLoraBWeight = ".lora_B.weight";

/// The tables of one mesh. Parameters with the same partition share one.
class Tables {
 public:
  Tables(std::uint32_t tp, std::uint32_t ep) : tp_(tp), ep_(ep) {}

  /// Equal chunks, `stride` per rank, which has every TP-th chunk. If experts are stacked along the split dim, they are
  /// distributed over `experts` expert-parallel ranks.
  Table strided(std::uint32_t stride, std::uint32_t experts, std::optional<std::uint64_t> unit_elems = {}) {
    Table& table = strided_[{stride, experts, unit_elems}];
    if (table) return table;
    const std::uint32_t each = stride / experts;
    table = make(std::uint64_t{tp_} * stride, unit_elems, experts > 1 ? tp_ * ep_ : tp_, [&](std::uint32_t rank) {
      std::vector<std::uint32_t> taken(each);
      const std::uint32_t first = rank / tp_ * each;
      for (std::uint32_t i = 0; i < each; ++i) taken[i] = rank % tp_ + (first + i) * tp_;
      return taken;
    });
    return table;
  }

  /// Matrices packed in one, in chunks that divide each matrix and each rank's share of it. If the matrices belong to
  /// experts, they are distributed over expert-parallel ranks.
  Table packed(const ParallelParameter& parameter) {
    const std::uint32_t experts = parameter.partition_dim == 0 ? parameter.expert_partitions : 1;
    std::uint64_t chunk = 0;
    std::uint64_t size = 0;
    for (const PackedPart& part : parameter.packed) {
      chunk = std::gcd(chunk, part.replicated ? part.size : part.size / tp_);
      size += part.size;
    }
    const std::size_t each = parameter.packed.size() / experts;  // matrices
    return make(size / chunk, chunk, experts > 1 ? tp_ * ep_ : tp_, [&](std::uint32_t rank) {
      std::vector<std::uint32_t> taken;
      std::uint64_t begin = 0;  // begin of the matrix, in chunks
      for (std::size_t i = 0; i < parameter.packed.size(); ++i) {
        const PackedPart& part = parameter.packed[i];
        const std::uint64_t chunks = part.size / chunk;
        const std::uint64_t count = part.replicated ? chunks : chunks / tp_;
        const std::uint64_t first = begin + (part.replicated ? 0 : count * (rank % tp_));
        if (experts == 1 || i / each == rank / tp_)
          for (std::uint64_t c = 0; c < count; ++c) taken.push_back(static_cast<std::uint32_t>(first + c));
        begin += chunks;
      }
      return taken;
    });
  }

  /// The numbers of a rank's heads. Numbers >= `heads` are heads of zeros.
  Table heads(std::uint32_t heads, const std::function<std::vector<std::uint32_t>(std::uint32_t)>& of_rank) {
    return make(heads, std::nullopt, tp_, of_rank);
  }

  /// One slice per expert-parallel rank, for experts that are stacked in dim 0.
  Table slices(std::uint32_t experts) {
    Table& table = slices_[experts];
    if (!table)
      table = make(experts, std::nullopt, tp_ * ep_,
                   [&](std::uint32_t rank) { return std::vector<std::uint32_t>{rank / tp_}; });
    return table;
  }

  /// The columns of linear number `linear` in a stacked lora_B; all other columns are zeros. lora_A is stacked, and
  /// each linear is multiplied only with its own rows of lora_A.
  Table diagonal(const std::vector<std::uint64_t>& stacked_ranks, std::size_t linear) {
    std::uint64_t unit = 0;
    for (const std::uint64_t rank : stacked_ranks) unit = std::gcd(unit, rank);
    const auto own = static_cast<std::uint32_t>(stacked_ranks[linear] / unit);
    return make(own, unit, 1, [&](std::uint32_t) {
      std::vector<std::uint32_t> taken;
      for (std::size_t i = 0; i < stacked_ranks.size(); ++i)
        for (std::uint32_t chunk = 0; chunk < stacked_ranks[i] / unit; ++chunk)
          taken.push_back(i == linear ? chunk : own);
      return taken;
    });
  }

  /// A whole logical tensor, whose size along the dim is known.
  static Table whole(std::uint64_t size) { return std::make_shared<const Placement>(Placement{1, size, {{0}}}); }

 private:
  template <typename Taken>
  Table make(std::uint64_t units, std::optional<std::uint64_t> unit_elems, std::uint32_t ranks, Taken&& taken) {
    Placement placement{units, unit_elems, {}};
    placement.taken.reserve(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      placement.taken.push_back(taken(rank));
      chunks_ += placement.taken.back().size();
      if (chunks_ > kMaxChunks)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("the metadata splits its tensors into more than {} chunks over {} "
                                "ranks, more than any model has",
                                kMaxChunks, ranks))
            .hint("the metadata is damaged, or belongs to another checkpoint");
    }
    return std::make_shared<const Placement>(std::move(placement));
  }

  std::uint32_t tp_;
  std::uint32_t ep_;
  std::uint64_t chunks_ = 0;  // in all tables, over all ranks
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::optional<std::uint64_t>>, Table> strided_;
  std::map<std::uint32_t, Table> slices_;
};

/// Returns the rule that the parameter's own entry defines.
PartitionRule own_rule(const ParallelParameter& parameter, Tables& tables) {
  PartitionRule rule;
  rule.stored_name = parameter.name;
  rule.parts.push_back({parameter.name});
  if (!parameter.tensor_model_parallel) return rule;
  rule.label = parameter.partition_dim == 0 ? PartitionLabel::kColumn : PartitionLabel::kRow;
  rule.stack_dim = parameter.partition_dim;
  Table table = !parameter.packed.empty()
                    ? tables.packed(parameter)
                    : tables.strided(parameter.partition_stride, rule.stack_dim == 0 ? parameter.expert_partitions : 1);
  rule.parts.front().placed = {{rule.stack_dim, std::move(table)}};
  return rule;
}

/// Sets the expert-parallel ranks that have the parameter, from its entry.
void add_experts(PartitionRule& rule, const ParallelParameter& parameter, Tables& tables) {
  rule.expert_rank = parameter.expert_rank;
  rule.expert_parallel = parameter.expert_model_parallel();
  if (parameter.expert_partitions == 1) return;
  if (parameter.tensor_model_parallel && parameter.partition_dim == 0) return;  // done by the placement
  for (Part& part : rule.parts)
    part.placed.insert(part.placed.begin(), {0, tables.slices(parameter.expert_partitions)});
}

/// One of several fused linears.
struct Linear {
  std::string name;  // including its module
  Table table;
};

/// A stored name that a spec explains: the entry that it requires, and its rule.
struct Explained {
  Explained(RequiredSplit an_entry, bool exempt, std::function<PartitionRule()> a_rule)
      : entry(std::move(an_entry)), is_exempt(exempt), rule(std::move(a_rule)) {}

  RequiredSplit entry;
  bool is_exempt;  // its entry need not match
  std::function<PartitionRule()> rule;
};

using ByName = std::unordered_map<std::string, Explained>;

/// Returns the rule of the adapter matrix that is not split: one that all linears share, or the matrices of all linears
/// stacked.
PartitionRule shared_rule(const std::vector<Linear>& linears, const std::string& suffix,
                          const std::vector<std::uint64_t>& stacked_ranks) {
  PartitionRule rule;
  rule.one_of_parts = stacked_ranks.empty();
  if (!rule.one_of_parts) rule.label = PartitionLabel::kFused;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    rule.parts.push_back({linears[i].name + suffix});
    if (!rule.one_of_parts) rule.parts.back().placed = {{0, Tables::whole(stacked_ranks[i])}};
  }
  return rule;
}

/// Returns a rule whose parts are `count` of the `linears`, from number `first` on.
PartitionRule rule_of(PartitionLabel label, std::uint32_t dim, const std::vector<Linear>& linears, std::size_t first,
                      std::size_t count, const std::string& suffix, const std::vector<std::uint64_t>& stacked_ranks,
                      Tables& tables) {
  PartitionRule rule;
  rule.label = label;
  rule.stack_dim = dim;
  for (std::size_t i = first; i < first + count; ++i) {
    rule.parts.push_back({linears[i].name + suffix, {{dim, linears[i].table}}});
    if (!stacked_ranks.empty() && suffix == kLoraBWeight)
      rule.parts.back().placed.push_back({1, tables.diagonal(stacked_ranks, i)});
  }
  return rule;
}

/// Registers the stored names that one module's spec explains. Rules are built on demand.
void explain(const std::string& module, const FusedLinearsSpec& spec, std::uint32_t tp, Tables& tables, ByName& names) {
  const std::string prefix = module + ".";
  const auto stride = static_cast<std::uint32_t>(spec.linear_names.size());
  const auto linears = [&spec, &tables, prefix, tp] {
    std::vector<Linear> all;
    for (std::size_t i = 0; i < spec.linear_names.size(); ++i)
      all.push_back({prefix + spec.linear_names[i], tables.strided(1, 1, spec.original_dims[i] / tp)});
    return all;
  };
  const auto add = [&](const std::string& suffix) {
    const std::string name = prefix + spec.fused_linear_name + suffix;
    names.try_emplace(name, RequiredSplit{name, true, spec.fuse_axis, stride}, false,
                      [&spec, &tables, suffix, linears] {
                        const std::vector<Linear> all = linears();
                        return rule_of(PartitionLabel::kFused, spec.fuse_axis, all, 0, all.size(), suffix,
                                       spec.stacked_ranks, tables);
                      });
  };
  const bool column = spec.fuse_axis == 0;
  for (const char* place : column ? kOutputPlaces : kInputPlaces)
    for (const char* leaf : {".weight", ".bias"}) add(std::string(place) + leaf);
  const std::string shared = column || !spec.stacked_ranks.empty() ? kLoraAWeight : kLoraBWeight;
  const std::string name = prefix + spec.fused_linear_name + shared;
  names.try_emplace(name, RequiredSplit{name, false}, false,
                    [&spec, shared, linears] { return shared_rule(linears(), shared, spec.stacked_ranks); });
  if (column) add(".lora_magnitude_vector");
}

void explain(const std::string& module, const GQAQKVColumnParallelLinearSpec& spec, Tables& tables, ByName& names) {
  const std::string prefix = module + ".";
  const auto made = std::make_shared<std::vector<Linear>>();
  const auto linears = [&spec, &tables, prefix, made]() -> const std::vector<Linear>& {
    if (!made->empty()) return *made;
    const Table query =
        tables.heads(spec.num_attention_heads, [&](std::uint32_t rank) { return spec.query_heads(rank); });
    const Table key_value =
        tables.heads(spec.num_key_value_heads, [&](std::uint32_t rank) { return spec.key_value_heads(rank); });
    *made = {{prefix + spec.query_projection_name, query},
             {prefix + spec.key_projection_name, key_value},
             {prefix + spec.value_projection_name, key_value},
             {prefix + spec.output_projection_name, query}};
    return *made;
  };
  const auto add = [&](const std::string& name, const std::string& suffix, std::uint32_t dim, std::size_t first,
                       std::size_t count) {
    names.try_emplace(name, RequiredSplit{name, true, dim, 1}, count > 1,
                      [&spec, &tables, suffix, dim, first, count, linears] {
                        return rule_of(PartitionLabel::kGroupedQuery, dim, linears(), first, count, suffix,
                                       spec.stacked_ranks, tables);
                      });
  };
  for (const char* place : kOutputPlaces)
    for (const char* leaf : {".weight", ".bias"}) {
      const std::string suffix = std::string(place) + leaf;
      const std::string fused = prefix + spec.gqa_qkv_projection_name + suffix;
      add(fused + "_q", suffix, 0, 0, 1);
      add(fused + "_k", suffix, 0, 1, 1);
      add(fused + "_v", suffix, 0, 2, 1);
      add(fused + "_qkv", suffix, 0, 0, 3);
    }
  for (const char* place : kInputPlaces) {
    const std::string suffix = std::string(place) + ".weight";
    add(prefix + spec.output_projection_name + suffix, suffix, 1, 3, 1);
  }
  const std::string name = prefix + spec.gqa_qkv_projection_name + kLoraAWeight;
  names.try_emplace(name, RequiredSplit{name, false}, false, [&spec, linears] {
    std::vector<Linear> three = linears();
    three.pop_back();
    return shared_rule(three, kLoraAWeight, spec.stacked_ranks);
  });
}

/// Returns the names that the stage's specs explain. The result borrows `metadata` and `tables`.
ByName explained(const StageMetadata& metadata, std::uint32_t tp, Tables& tables) {
  ByName names;
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      if (const auto* fused = std::get_if<FusedLinearsSpec>(&spec))
        explain(module.module_fully_qualified_name, *fused, tp, tables, names);
      else
        explain(module.module_fully_qualified_name, std::get<GQAQKVColumnParallelLinearSpec>(spec), tables, names);
  return names;
}

}  // namespace

std::vector<PartitionRule> partition_rules(const StageMetadata& metadata, std::uint32_t tp, std::uint32_t ep) {
  Tables tables(tp, ep);
  const ByName by_spec = explained(metadata, tp, tables);
  std::vector<PartitionRule> rules;
  rules.reserve(metadata.parameters.size());
  for (const ParallelParameter& parameter : metadata.parameters) {
    const auto found = by_spec.find(parameter.name);
    if (found == by_spec.end()) {
      rules.push_back(own_rule(parameter, tables));
    } else {
      rules.push_back(found->second.rule());
      rules.back().stored_name = parameter.name;
      rules.back().from_spec = true;
    }
    add_experts(rules.back(), parameter, tables);
  }
  return rules;
}

PartitionRule partition_rule(const ParallelParameter& parameter, std::uint32_t tp, std::uint32_t ep) {
  Tables tables(tp, ep);
  PartitionRule rule = own_rule(parameter, tables);
  add_experts(rule, parameter, tables);
  return rule;
}

std::vector<RequiredSplit> required_splits(const StageMetadata& metadata) {
  Tables tables(1, 1);
  const ByName by_spec = explained(metadata, 1, tables);
  std::vector<RequiredSplit> entries;
  for (const ParallelParameter& parameter : metadata.parameters) {
    const auto found = by_spec.find(parameter.name);
    if (found != by_spec.end() && !found->second.is_exempt) entries.push_back(found->second.entry);
  }
  return entries;
}

}  // namespace reshard
