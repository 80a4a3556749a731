#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/specs/model/model.h"
#include "reshard/specs/parallel/head_slots.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

struct TargetPlan;

/// How a target stores attention, for display.
struct AttentionReport {
  /// Head numbers in the order in which they are stored. An unknown number denotes a head of zeros.
  struct RankHeads {
    std::vector<std::uint32_t> query;
    std::vector<std::uint32_t> key_value;
  };

  AttentionForm form = AttentionForm::kSeparate;  // grouped query if heads are replicated or reordered
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t copies = 1;      // number of replicas of each key/value head
  std::vector<RankHeads> ranks;  // grouped query only; else ranks have equal shares in order
};

/// Returns the report for layouts of training. Requires a family with attention.
AttentionReport attention_report(const Model& model, std::uint32_t tp, const PartitionOptions& options);

/// Returns the report for NxD Inference (inference_head_slots).
/// \param fused  Whether q, k and v are one projection.
AttentionReport inference_report(const Model& model, std::uint32_t tp, bool fused);

/// Adds to a report the heads of each rank, which are even parts of `slots`.
AttentionReport with_slots(AttentionReport report, const HeadSlots& slots, std::uint32_t tp);

/// Whether the model's query, key and value projections can be stored in several forms; else they are never changed.
bool chooses_attention(const Model& model);

// LayoutOption::why_idle for options that fuse the projections, replicate key/value heads and order the replicas.
std::string why_fusion_idle(const TargetPlan& plan, const Model& model);
std::string why_multiplier_idle(const TargetPlan& plan, const Model& model);
std::string why_replication_idle(const TargetPlan& plan, const Model& model);

}  // namespace reshard
