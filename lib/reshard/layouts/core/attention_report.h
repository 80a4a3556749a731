#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/specs/model/model.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

struct TargetPlan;

/// What attention becomes, for people.
struct AttentionReport {
  /// By number, in their order; one that is no head's is of zeros.
  struct RankHeads {
    std::vector<std::uint32_t> query;
    std::vector<std::uint32_t> key_value;
  };

  AttentionForm form = AttentionForm::kSeparate;  // grouped query: key/value heads are repeated or in another order
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t copies = 1;      // of each key/value head
  std::vector<RankHeads> ranks;  // of grouped query; else each rank has as many heads, in their order
};

/// In the layouts of training. Call only for a family with attention.
AttentionReport attention_report(const Model& model, std::uint32_t tp, const PartitionOptions& options);

/// As NxD Inference places heads (inference_head_slots). `fused`: one projection for q, k and v.
AttentionReport inference_report(const Model& model, std::uint32_t tp, bool fused);

/// Whether the model's query, key and value projections have several forms; else they stay as they are.
bool chooses_attention(const Model& model);

// As of LayoutOption::why_idle, of options that fuse the projections, replicate key/value heads and order the replicas.
std::string why_fusion_idle(const TargetPlan& plan, const Model& model);
std::string why_multiplier_idle(const TargetPlan& plan, const Model& model);
std::string why_replication_idle(const TargetPlan& plan, const Model& model);

}  // namespace reshard
