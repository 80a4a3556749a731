#include "reshard/specs/parallel/head_slots.h"

#include <algorithm>

#include "support/catch.h"

namespace reshard::test {
namespace {

using Slots = std::vector<std::uint32_t>;

TEST_CASE("NxD Inference's slots, as its description gives them") {
  struct Row {
    std::uint32_t heads, kv_heads, tp;
    Slots query, key_value;
  };
  const Row rows[] = {
      {6, 2, 4, {0, 1, 2, 6, 3, 4, 5, 6}, {0, 0, 1, 1}},
      {8, 4, 12, {0, 1, 8, 2, 3, 8, 4, 5, 8, 6, 7, 8}, {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}},
      {8, 8, 3, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}},
      {4, 4, 8, {0, 4, 1, 4, 2, 4, 3, 4}, {0, 0, 1, 1, 2, 2, 3, 3}},
      {8, 4, 2, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3}},
      {8, 4, 4, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3}},
      // Where the reference fails: multi-head attention, by its description.
      {6, 3, 4, {0, 1, 2, 3, 4, 5, 6, 6}, {0, 0, 1, 1, 2, 2, 3, 3}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.heads, row.kv_heads, row.tp);
    const HeadSlots slots = inference_head_slots(row.heads, row.kv_heads, row.tp);
    CHECK(slots.query == row.query);
    CHECK(slots.key_value == row.key_value);
  }
}

TEST_CASE("Whatever the numbers, a query's key/value head is on its rank, and where the model has them together") {
  for (std::uint32_t kv_heads = 1; kv_heads <= 12; ++kv_heads)
    for (std::uint32_t group = 1; group <= 8; ++group)
      for (std::uint32_t tp = 1; tp <= 36; ++tp) {
        const std::uint32_t heads = kv_heads * group;
        CAPTURE(heads, kv_heads, tp);
        const HeadSlots slots = inference_head_slots(heads, kv_heads, tp);
        REQUIRE(slots.query.size() % tp == 0);
        REQUIRE(slots.key_value.size() % tp == 0);
        REQUIRE(slots.query.size() % slots.key_value.size() == 0);
        // Attention gives each key/value slot the same number of query slots, in order.
        const std::size_t share = slots.query.size() / slots.key_value.size();
        Slots seen;
        bool together = true;
        for (std::size_t slot = 0; slot < slots.query.size(); ++slot) {
          if (slots.query[slot] >= heads) continue;
          seen.push_back(slots.query[slot]);
          together = together && slots.key_value[slot / share] == slots.query[slot] / group;
        }
        CHECK(together);
        Slots all(heads);
        for (std::uint32_t head = 0; head < heads; ++head) all[head] = head;
        CHECK(seen == all);
      }
}

}  // namespace
}  // namespace reshard::test
