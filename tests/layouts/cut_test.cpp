#include "reshard/layouts/cut.h"

#include "support/catch.h"
#include "support/models.h"

namespace reshard::test {
namespace {

StageMetadata with_parameter(const ParallelParameter& parameter) {
  return {{parameter}, {}};
}

TEST_CASE("A rank of a strided parameter takes every T-th chunk") {
  const StageMetadata metadata = with_parameter({"w", true, 0, 3, 4});
  const auto rules = cut_rules(metadata);
  REQUIRE(rules.size() == 1);
  CHECK(rules[0].kind == CutKind::kColumn);
  const Cut cut = rules[0].for_rank(2, 4);
  REQUIRE(cut.parts.size() == 1);
  CHECK(cut.parts[0].units == 12);
  CHECK(cut.parts[0].taken == std::vector<std::uint32_t>{2, 6, 10});
  CHECK(stored_shape(cut, {{24, 5}}) == Dims{6, 5});
  CHECK(logical_shapes(cut, {6, 5}) == std::vector<Dims>{{24, 5}});
}

TEST_CASE("A row parameter is cut along dim 1, a replicated one not at all") {
  const StageMetadata row_metadata = with_parameter({"w", true, 1, 1, 4});
  const Cut row = cut_rules(row_metadata)[0].for_rank(3, 4);
  CHECK(row.kind == CutKind::kRow);
  CHECK(stored_shape(row, {{5, 24}}) == Dims{5, 6});
  const StageMetadata whole_metadata = with_parameter({"w", false, 0, 1, 1});
  const Cut whole_cut = cut_rules(whole_metadata)[0].for_rank(3, 4);
  CHECK(whole_cut.kind == CutKind::kReplicated);
  CHECK(stored_shape(whole_cut, {{}}) == Dims{});
  CHECK(logical_shapes(whole_cut, {5, 24}) == std::vector<Dims>{{5, 24}});
}

TEST_CASE("A fused parameter takes each linear's slice at the size that the spec gives") {
  StageMetadata metadata = with_parameter({"m.qkv.weight", true, 0, 3, 2});
  metadata.modules.push_back({"m", {FusedLinearsSpec{"qkv", {"q", "k", "v"}, false, 0, {8, 4, 4}, 2}}});
  const Cut cut = cut_rules(metadata)[0].for_rank(1, 2);
  CHECK(cut.kind == CutKind::kFused);
  REQUIRE(cut.parts.size() == 3);
  CHECK(cut.parts[1].logical_name == "m.k.weight");
  CHECK(stored_shape(cut, {{8, 3}, {4, 3}, {4, 3}}) == Dims{8, 3});
  CHECK(logical_shapes(cut, {8, 3}) == std::vector<Dims>{{8, 3}, {4, 3}, {4, 3}});
  CHECK_FALSE(logical_shapes(cut, {9, 3}));
  CHECK_FALSE(stored_shape(cut, {{8, 3}, {6, 3}, {4, 3}}));
  CHECK_FALSE(stored_shape(cut, {{8, 3}, {4, 4}, {4, 3}}));
}

TEST_CASE("The spec rules a fused grouped-query parameter, whatever its own metadata says") {
  StageMetadata metadata = with_parameter({"a.qkv_proj.weight_qkv", false, 0, 1, 1});
  GQAQKVColumnParallelLinearSpec spec{"qkv_proj", "q", "k", "v", "o", 8, 2, 2, 8, 4, true, false, 4};
  metadata.modules.push_back({"a", {spec}});
  metadata.parameters.push_back({"a.o.weight", true, 1, 1, 4});
  const auto rules = cut_rules(metadata);
  const Cut cut = rules[0].for_rank(3, 4);
  CHECK(cut.kind == CutKind::kGroupedQuery);
  REQUIRE(cut.parts.size() == 3);
  CHECK(cut.parts[0].taken == std::vector<std::uint32_t>{6, 7});  // slot 3: head 1, replica 1
  CHECK(cut.parts[1].taken == std::vector<std::uint32_t>{1});
  CHECK(rules[1].for_rank(2, 4).parts[0].taken == std::vector<std::uint32_t>{2, 3});  // slot 2: head 0, replica 1
  CHECK(rules[1].for_rank(2, 4).dim == 1);
}

TEST_CASE("A shape that does not come out even has no cut") {
  const StageMetadata metadata = with_parameter({"w", true, 0, 2, 2});
  const Cut cut = cut_rules(metadata)[0].for_rank(0, 2);
  CHECK_FALSE(stored_shape(cut, {{6, 2}}));
  CHECK_FALSE(logical_shapes(cut, {3, 2}));
  CHECK_FALSE(logical_shapes(cut, {}));  // a scalar has no dim 0
  CHECK_FALSE(stored_shape(cut, {{}}));
  const Cut huge = {CutKind::kColumn, 0, {{"w", 4096, {0}, {}}}};
  CHECK_FALSE(logical_shapes(huge, {std::uint64_t{1} << 60}));  // 2^72 elements
}

TEST_CASE("Shapes go through any cut and come back") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto tp = static_cast<std::uint32_t>(pick(random, 1, 6));
    const auto stride = static_cast<std::uint32_t>(pick(random, 1, 3));
    const auto dim = static_cast<std::uint32_t>(random() % 2);
    Dims shape{pick(random, 0, 4), pick(random, 0, 4), pick(random, 0, 3)};
    shape[dim] *= tp * stride;
    const StageMetadata metadata = with_parameter({"w", true, dim, stride, tp});
    const Cut cut = cut_rules(metadata)[0].for_rank(static_cast<std::uint32_t>(random() % tp), tp);
    const auto stored = stored_shape(cut, {shape});
    REQUIRE(stored);
    CHECK((*stored)[dim] * tp == shape[dim]);
    CHECK(logical_shapes(cut, *stored) == std::vector<Dims>{shape});
  }
}

}  // namespace
}  // namespace reshard::test
