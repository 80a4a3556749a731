#include "reshard/layouts/placed_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/base/error.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxChunks = 1 << 24;  // of all sizes, over all ranks

}  // namespace

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

CutRule& PlacedRules::add_rule(std::string name, CutKind kind, CutRule::Role role) {
  CutRule rule{std::move(name), kind};
  rule.role = role;
  return rules_.emplace_back(std::move(rule));
}

void PlacedRules::add_rank_number(std::string name) {
  add_rule(std::move(name), CutKind::kConstant, CutRule::Role::kRankNumber);
}

void PlacedRules::add_placed(std::string name, CutKind kind, std::uint32_t dim, std::vector<CutRule::Placed> parts) {
  CutRule& rule = add_rule(std::move(name), kind, CutRule::Role::kPlaced);
  rule.dim = dim;
  rule.placed = std::move(parts);
}

void PlacedRules::add_whole(std::string name, const std::string& logical_name) {
  add_placed(std::move(name), CutKind::kReplicated, 0, {{logical_name, nullptr}});
}

void PlacedRules::add(const ModelParameter& parameter, std::string name, std::optional<std::uint32_t> dim) {
  const std::string& original = parameter.tied_to.empty() ? parameter.name : parameter.tied_to;
  if (!dim) return add_whole(std::move(name), original);
  if (!parameter.packed.empty()) return add_packed(parameter, std::move(name));
  const CutKind kind = !parameter.tied_to.empty() ? CutKind::kTied : *dim == 0 ? CutKind::kColumn : CutKind::kRow;
  add_placed(std::move(name), kind, *dim, {{original, evenly(parameter, *dim), parameter.is_bias}});
}

void PlacedRules::add_packed(const ModelParameter& parameter, std::string name) {
  CutRule& rule =
      add_rule(std::move(name), *parameter.split_dim == 0 ? CutKind::kColumn : CutKind::kRow, CutRule::Role::kPlain);
  rule.own = std::make_shared<const ParallelParameter>(own_parameter(parameter, tp_));
  rule.parameter = rule.own.get();
}

std::shared_ptr<const Placement> PlacedRules::evenly(const ModelParameter& parameter, std::uint32_t dim) {
  const std::uint64_t size = parameter.shape[dim];
  auto& table = even_[size];
  if (table) return table;
  const std::uint64_t each = size / tp_ + (size % tp_ != 0 ? 1 : 0);
  const std::uint64_t unit = std::gcd(size, each);
  chunks_ += unit == 0 ? 0 : std::min(each / unit, kMaxChunks) * tp_;
  if (chunks_ > kMaxChunks)
    throw Error(ErrorKind::kBadInput, fmt::format("dim {} has {} elements: over {} ranks, this and others are more "
                                                  "than any model has",
                                                  dim, size, tp_))
        .tensor(parameter.name);
  std::vector<std::uint32_t> slots(unit == 0 ? 0 : each / unit * tp_);
  std::iota(slots.begin(), slots.end(), 0u);
  table = placement_of(slots, unit == 0 ? 1 : size / unit, unit, tp_);
  return table;
}

}  // namespace reshard
