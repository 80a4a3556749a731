#include "reshard/layouts/rules/placed_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
std::shared_ptr<const Placement> placement_of(const std::vector<std::uint32_t>& slots, std::uint64_t units,
                                              std::uint64_t unit_elems, std::uint32_t tp) {
  Placement placement{units, unit_elems, {}};
  const std::size_t each = slots.size() / tp;
  for (std::uint32_t rank = 0; rank < tp; ++rank) {
    const auto first = slots.begin() + static_cast<std::ptrdiff_t>(rank * each);
    placement.taken.emplace_back(first, first + static_cast<std::ptrdiff_t>(each));
  }
  return std::make_shared<const Placement>(std::move(placement));
}

void PlacedRules::add_rank_number(std::string name) {
  PartitionRule& rule = rules_.emplace_back();
  rule.stored_name = std::move(name);
  rule.label = PartitionLabel::kConstant;
  rule.constant = {DType::kI32, {1}, {}, true};
  for (std::uint64_t rank = 0; rank < tp_; ++rank) rule.constant->values.push_back({rank});
}

void PlacedRules::add_constant(std::string name, DType dtype, Dims shape,
                               std::vector<std::vector<std::uint64_t>> values) {
  PartitionRule& rule = rules_.emplace_back();
  rule.stored_name = std::move(name);
  rule.label = PartitionLabel::kConstant;
  rule.constant = {dtype, std::move(shape), std::move(values)};
}

PartitionRule& PlacedRules::add_placed(std::string name, PartitionLabel label, std::uint32_t dim,
                                       std::vector<PartitionRule::Part> parts) {
  PartitionRule& rule = rules_.emplace_back();
  rule.stored_name = std::move(name);
  rule.label = label;
  rule.stack_dim = dim;
  rule.parts = std::move(parts);
  rule.records_originals = true;
  return rule;
}

PartitionRule& PlacedRules::add_whole(std::string name, const std::string& logical_name) {
  return add_placed(std::move(name), PartitionLabel::kReplicated, 0, {{logical_name}});
}

PartitionRule& PlacedRules::add(const ModelParameter& parameter, std::string name, std::optional<std::uint32_t> dim,
                                std::uint64_t padded) {
  const std::string& original = parameter.tied_to.empty() ? parameter.name : parameter.tied_to;
  if (!dim) return add_whole(std::move(name), original);
  if (!parameter.packed.empty()) {
    PartitionRule& rule = rules_.emplace_back(partition_rule(own_parameter(parameter, tp_), tp_));
    rule.stored_name = std::move(name);
    return rule;
  }
  const PartitionLabel label = !parameter.tied_to.empty() ? PartitionLabel::kTied
                               : *dim == 0                ? PartitionLabel::kColumn
                                                          : PartitionLabel::kRow;
  if (padded == 0) padded = rounded_up(parameter.shape[*dim], std::uint64_t{tp_});
  add_placed(std::move(name), label, *dim, {{original, {{*dim, evenly(parameter, *dim, padded)}}, parameter.is_bias}});
  rules_.back().tied = !parameter.tied_to.empty();
  return rules_.back();
}

std::shared_ptr<const Placement> PlacedRules::evenly(const ModelParameter& parameter, std::uint32_t dim,
                                                     std::uint64_t padded) {
  const std::uint64_t size = parameter.shape[dim];
  auto& table = even_[{size, padded}];
  if (table) return table;
  const std::uint64_t each = padded / tp_;
  const std::uint64_t unit = std::gcd(size, each);
  chunks_ += unit == 0 ? 0 : std::min(each / unit, kMaxChunks) * tp_;
  if (chunks_ > kMaxChunks)
    throw Error(ErrorKind::kBadInput,
                fmt::format("dim {} has {} elements: together with others, over {} ranks, more than any model has", dim,
                            size, tp_))
        .tensor(parameter.name);
  std::vector<std::uint32_t> slots(unit == 0 ? 0 : each / unit * tp_);
  std::iota(slots.begin(), slots.end(), 0u);
  table = placement_of(slots, unit == 0 ? 1 : size / unit, unit, tp_);
  return table;
}

}  // namespace reshard
