#pragma once

#include <cstdint>
#include <vector>

namespace reshard {

/// The heads in the attention projections of a sharded model, in order over all ranks; each rank has an equal slice of
/// each list. Any other number represents a head of zeros.
struct HeadSlots {
  std::vector<std::uint32_t> query;
  std::vector<std::uint32_t> key_value;
};

/// Places heads like NxD Inference: replicas of a key/value head are adjacent, so that its queries are on the same
/// ranks, and padding heads fill up uneven ranks. Where NxD Inference fails (more query than key/value heads, and the
/// number of key/value heads neither divides the ranks nor is divided by them), follows its documentation: multi-head
/// attention with one replica of a key/value head per query head.
/// \param heads, kv_heads  numbers of heads of the model; `kv_heads` divides `heads`.
/// \param tp               at least 1.
HeadSlots inference_head_slots(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp);

}  // namespace reshard
