#include "reshard/specs/parallel/transformation_specs.h"

#include <fmt/format.h>

namespace reshard {

std::uint32_t GQAQKVColumnParallelLinearSpec::slots_per_rank() const {
  return (num_key_value_heads * kv_size_multiplier + (pad_heads ? tp_size - 1 : 0)) / tp_size;
}

std::uint32_t GQAQKVColumnParallelLinearSpec::heads_per_slot() const {
  const std::uint32_t group = num_attention_heads / num_key_value_heads;
  return (group + (pad_heads ? kv_size_multiplier - 1 : 0)) / kv_size_multiplier;
}

std::vector<std::uint32_t> GQAQKVColumnParallelLinearSpec::key_value_heads(std::uint32_t tp_rank) const {
  std::vector<std::uint32_t> heads;
  for (std::uint32_t slot = tp_rank * slots_per_rank(); slot < (tp_rank + 1) * slots_per_rank(); ++slot)
    heads.push_back(slot >= num_key_value_heads * kv_size_multiplier ? num_key_value_heads
                    : replication == KvReplication::kAdjacent        ? slot / kv_size_multiplier
                                                                     : slot % num_key_value_heads);
  return heads;
}

std::vector<std::uint32_t> GQAQKVColumnParallelLinearSpec::query_heads(std::uint32_t tp_rank) const {
  const std::uint32_t group = num_attention_heads / num_key_value_heads;
  std::vector<std::uint32_t> heads;
  std::uint32_t slot = tp_rank * slots_per_rank();
  for (const std::uint32_t kv_head : key_value_heads(tp_rank)) {
    const std::uint32_t replica =
        replication == KvReplication::kAdjacent ? slot % kv_size_multiplier : slot / num_key_value_heads;
    ++slot;
    for (std::uint32_t i = 0; i < heads_per_slot(); ++i) {
      const std::uint32_t of_group = replica * heads_per_slot() + i;
      const bool zeros = kv_head == num_key_value_heads || of_group >= group;
      heads.push_back(zeros ? num_attention_heads : kv_head * group + of_group);
    }
  }
  return heads;
}

std::string multiplier_problem(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp, std::uint64_t multiplier,
                               bool pad_heads) {
  if (kv_heads == 0 || heads % kv_heads != 0)
    return fmt::format("{} query heads do not fall into groups over {} key/value heads", heads, kv_heads);
  if (multiplier == 0) return "the multiplier must be at least 1";
  if (tp % multiplier != 0) return fmt::format("the TP degree {} is not a multiple of {}", tp, multiplier);
  if (pad_heads) return {};
  if (kv_heads * multiplier % tp != 0)
    return fmt::format("{} key/value heads repeated {} times make {} slots, which do not divide over {} ranks",
                       kv_heads, multiplier, kv_heads * multiplier, tp);
  if (heads / kv_heads % multiplier != 0)
    return fmt::format("the {} query heads of a key/value head do not divide over its {} copies", heads / kv_heads,
                       multiplier);
  return {};
}

std::vector<std::uint64_t> legal_multipliers(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp,
                                             bool pad_heads) {
  std::vector<std::uint64_t> legal;
  for (std::uint64_t m = 1; m <= tp; ++m)
    if (multiplier_problem(heads, kv_heads, tp, m, pad_heads).empty()) legal.push_back(m);
  return legal;
}

}  // namespace reshard
