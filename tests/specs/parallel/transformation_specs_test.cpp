#include "reshard/specs/parallel/transformation_specs.h"

#include <algorithm>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

using Heads = std::vector<std::uint32_t>;

GQAQKVColumnParallelLinearSpec spec_of(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp, std::uint32_t m) {
  GQAQKVColumnParallelLinearSpec spec;
  spec.num_attention_heads = heads;
  spec.num_key_value_heads = kv_heads;
  spec.kv_size_multiplier = m;
  spec.tp_size = tp;
  return spec;
}

Heads part(const Heads& all, std::uint32_t tp, std::uint32_t tp_rank) {
  const auto size = static_cast<std::ptrdiff_t>(all.size() / tp);
  return {all.begin() + tp_rank * size, all.begin() + (tp_rank + 1) * size};
}

/// The oracle for key and value: the whole list of heads m times over, to be cut in T parts.
Heads repeated(std::uint32_t kv_heads, std::uint32_t m) {
  Heads all;
  for (std::uint32_t copy = 0; copy < m; ++copy)
    for (std::uint32_t head = 0; head < kv_heads; ++head) all.push_back(head);
  return all;
}

/// The oracle for queries: the heads as an array [G][m][group / m], its first two dims swapped, to be cut in T parts.
Heads swapped(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t m) {
  const std::uint32_t run = heads / kv_heads / m;
  Heads all(heads);
  for (std::uint32_t g = 0, next = 0; g < kv_heads; ++g)
    for (std::uint32_t k = 0; k < m; ++k)
      for (std::uint32_t i = 0; i < run; ++i, ++next) all[(k * kv_heads + g) * run + i] = next;
  return all;
}

bool may_be(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t tp, std::uint32_t m) {
  return heads % kv_heads == 0 && tp % m == 0 && kv_heads * m % tp == 0 && heads / kv_heads % m == 0;
}

TEST_CASE("Ranks hold the heads of the repeated list split in equal parts, for every legal size") {
  std::size_t checked = 0;
  for (std::uint32_t kv_heads = 1; kv_heads <= 8; ++kv_heads)
    for (std::uint32_t group = 1; group <= 8; ++group)
      for (std::uint32_t tp = 1; tp <= 24; ++tp)
        for (std::uint32_t m = 1; m <= tp; ++m) {
          const std::uint32_t heads = kv_heads * group;
          if (!may_be(heads, kv_heads, tp, m)) continue;
          INFO(heads << " heads, " << kv_heads << " key/value heads, tp " << tp << ", multiplier " << m);
          const auto spec = spec_of(heads, kv_heads, tp, m);
          for (std::uint32_t r = 0; r < tp; ++r) {
            CHECK(spec.key_value_heads(r) == part(repeated(kv_heads, m), tp, r));
            CHECK(spec.query_heads(r) == part(swapped(heads, kv_heads, m), tp, r));
            CHECK(spec.key_value_heads(r).size() == spec.slots_per_rank());
          }
          ++checked;
        }
  CHECK(checked > 200);
}

TEST_CASE("The legal multipliers are those that meet all three conditions") {
  for (std::uint32_t kv_heads = 1; kv_heads <= 6; ++kv_heads)
    for (std::uint32_t heads = kv_heads; heads <= 4 * kv_heads; ++heads)
      for (std::uint32_t tp = 1; tp <= 24; ++tp) {
        INFO(heads << " heads, " << kv_heads << " key/value heads, tp " << tp);
        std::vector<std::uint64_t> expected;
        for (std::uint32_t m = 1; m <= 2 * tp; ++m) {
          if (may_be(heads, kv_heads, tp, m)) expected.push_back(m);
          CHECK(multiplier_problem(heads, kv_heads, tp, m).empty() == may_be(heads, kv_heads, tp, m));
        }
        CHECK(legal_multipliers(heads, kv_heads, tp) == expected);
      }
}

TEST_CASE("An illegal multiplier is explained with the numbers that clash") {
  CHECK_THAT(multiplier_problem(8, 3, 4, 2), Says("8 query heads do not fall into groups over 3 key/value heads"));
  CHECK_THAT(multiplier_problem(8, 0, 4, 2), Says("over 0 key/value heads"));
  CHECK_THAT(multiplier_problem(8, 2, 4, 0), Says("at least 1"));
  CHECK_THAT(multiplier_problem(8, 2, 4, 3), Says("the TP degree 4 is not a multiple of 3"));
  CHECK_THAT(multiplier_problem(8, 2, 4, 1), Says("2 key/value heads repeated 1 times make 2 slots"));
  CHECK_THAT(multiplier_problem(8, 2, 4, 1), Says("do not divide over 4 ranks"));
  CHECK_THAT(multiplier_problem(6, 2, 4, 2), Says("the 3 query heads of a key/value head do not divide over its 2"));
  CHECK(multiplier_problem(8, 2, 4, 2).empty());
}

TEST_CASE("Key and value heads are replicated where they do not divide over the ranks") {
  CHECK_FALSE(needs_gqa_qkv(8, 1));
  CHECK_FALSE(needs_gqa_qkv(8, 4));
  CHECK_FALSE(needs_gqa_qkv(8, 8));
  CHECK(needs_gqa_qkv(8, 16));
  CHECK(needs_gqa_qkv(8, 3));
  CHECK(needs_gqa_qkv(1, 2));
}

TEST_CASE("In every order and with heads of zeros, a query's key/value head is beside it, and every head is there") {
  for (std::uint32_t kv_heads = 1; kv_heads <= 6; ++kv_heads)
    for (std::uint32_t group = 1; group <= 5; ++group)
      for (const std::uint32_t tp : {1u, 2u, 3u, 4u, 6u, 8u, 12u})
        for (std::uint32_t multiplier = 1; multiplier <= tp; ++multiplier)
          for (const KvReplication replication : {KvReplication::kTiled, KvReplication::kAdjacent}) {
            if (!multiplier_problem(std::uint64_t{kv_heads} * group, kv_heads, tp, multiplier, true).empty()) continue;
            CAPTURE(kv_heads, group, tp, multiplier, static_cast<int>(replication));
            auto spec = spec_of(kv_heads * group, kv_heads, tp, multiplier);
            spec.pad_heads = true;
            spec.replication = replication;
            Heads queries, copies(kv_heads);
            bool beside = true;
            for (std::uint32_t rank = 0; rank < tp; ++rank) {
              const Heads query = spec.query_heads(rank);
              const Heads key = spec.key_value_heads(rank);
              REQUIRE(key.size() == spec.slots_per_rank());
              REQUIRE(query.size() == key.size() * spec.heads_per_slot());
              for (const std::uint32_t head : key)
                if (head < kv_heads) ++copies[head];
              for (std::size_t i = 0; i < query.size(); ++i) {
                if (query[i] >= spec.num_attention_heads) continue;
                queries.push_back(query[i]);
                beside = beside && key[i / spec.heads_per_slot()] == query[i] / group;
              }
            }
            CHECK(beside);
            std::sort(queries.begin(), queries.end());
            Heads all(spec.num_attention_heads);
            for (std::uint32_t head = 0; head < all.size(); ++head) all[head] = head;
            CHECK(queries == all);
            CHECK(copies == Heads(kv_heads, multiplier));
          }
}

}  // namespace
}  // namespace reshard::test
