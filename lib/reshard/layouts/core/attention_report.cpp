#include "reshard/layouts/core/attention_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/layouts/core/layout.h"

namespace reshard {
namespace {

std::string keeps_projections(const Model& model) {
  return fmt::format("models of {} have one form of projections", model.family->model_type);
}

}  // namespace

AttentionReport attention_report(const Model& model, std::uint32_t tp, const PartitionOptions& options) {
  AttentionReport report{attention_form(model, tp, options), model.heads, model.kv_heads, model.head_dim, 1, {}};
  if (!is_grouped_query(report.form)) return report;
  const GQAQKVColumnParallelLinearSpec spec = gqa_spec(model, tp, options);
  report.copies = spec.kv_size_multiplier;
  for (std::uint32_t rank = 0; rank < tp; ++rank)
    report.ranks.push_back({spec.query_heads(rank), spec.key_value_heads(rank)});
  return report;
}

AttentionReport inference_report(const Model& model, std::uint32_t tp, bool fused) {
  const HeadSlots slots =
      inference_head_slots(static_cast<std::uint32_t>(model.heads), static_cast<std::uint32_t>(model.kv_heads), tp);
  const bool as_they_are = slots.query.size() == model.heads && slots.key_value.size() == model.kv_heads;
  AttentionReport report{attention_form_of(!as_they_are, fused), model.heads, model.kv_heads, model.head_dim, 1, {}};
  return as_they_are ? report : with_slots(std::move(report), slots, tp);
}

AttentionReport with_slots(AttentionReport report, const HeadSlots& slots, std::uint32_t tp) {
  report.copies = static_cast<std::uint64_t>(std::count(slots.key_value.begin(), slots.key_value.end(), 0u));
  const auto part = [&](const std::vector<std::uint32_t>& all, std::size_t rank) {
    const auto each = static_cast<std::ptrdiff_t>(all.size() / tp);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank) * each;
    return std::vector(first, first + each);
  };
  for (std::size_t rank = 0; rank < tp; ++rank)
    report.ranks.push_back({part(slots.query, rank), part(slots.key_value, rank)});
  return report;
}

bool chooses_attention(const Model& model) {
  return model.family->attention && !model.quantized && model.plain_heads;
}

std::string why_fusion_idle(const TargetPlan& plan, const Model& model) {
  if (plan.attention && is_fused(plan.attention->form)) return {};
  if (!chooses_attention(model)) return keeps_projections(model);
  return fmt::format(
      "{} query and {} key/value heads are fused only if their numbers are equal, or the ranks do not divide them",
      model.heads, model.kv_heads);
}

std::string why_multiplier_idle(const TargetPlan& plan, const Model& model) {
  if (plan.attention && is_grouped_query(plan.attention->form)) return {};
  if (!chooses_attention(model)) return keeps_projections(model);
  return fmt::format("{} key/value heads divide over {} ranks without replication", model.kv_heads, plan.mesh.tp);
}

std::string why_replication_idle(const TargetPlan& plan, const Model&) {
  return plan.attention && plan.attention->copies > 1 ? "" : "key/value heads are not replicated";
}

}  // namespace reshard
