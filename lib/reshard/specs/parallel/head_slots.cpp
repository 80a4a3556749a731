#include "reshard/specs/parallel/head_slots.h"

#include "reshard/base/checked.h"

namespace reshard {

HeadSlots inference_head_slots(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp) {
  HeadSlots slots;
  const std::uint32_t query_slots = rounded_up(heads, tp);
  const bool repeated = tp % kv_heads == 0;
  // If heads are replicated, zeros follow the queries of each key/value head; otherwise all zeros are last.
  const std::uint32_t zeros_each = repeated ? (query_slots - heads) / kv_heads : 0;
  const std::uint32_t group = heads / kv_heads;
  const std::uint32_t copies = repeated ? tp / kv_heads : kv_heads % tp == 0 ? 1 : group;
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    for (std::uint32_t i = 0; i < group; ++i) slots.query.push_back(head * group + i);
    slots.query.insert(slots.query.end(), zeros_each, heads);
    slots.key_value.insert(slots.key_value.end(), copies, head);
  }
  slots.query.resize(query_slots, heads);
  slots.key_value.resize(rounded_up(static_cast<std::uint32_t>(slots.key_value.size()), tp), kv_heads);
  return slots;
}

}  // namespace reshard
