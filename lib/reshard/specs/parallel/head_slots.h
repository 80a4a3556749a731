#pragma once

#include <cstdint>
#include <vector>

namespace reshard {

/// Which heads stand in the attention projections of a sharded model, in their order over all ranks; each rank has an
/// equal part of each list. A number that is no head's stands for a head of zeros.
struct HeadSlots {
  std::vector<std::uint32_t> query;
  std::vector<std::uint32_t> key_value;
};

/// As NxD Inference places them: heads of keys and values are replicated beside each other, so that the queries that
/// belong to one are on the same rank; padding heads make up what the ranks do not divide. Where it fails itself (more
/// query than key/value heads, of a number that neither divides the ranks nor is divided by them), its description
/// holds: multi-head attention, each head of keys and values once for each of its queries.
/// \param heads, kv_heads Of the model; `kv_heads` divides `heads`. \param tp At least 1.
HeadSlots inference_head_slots(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp);

}  // namespace reshard
