#include "reshard/layouts/map/partition.h"

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "support/models.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

using Part = PartitionRule::Part;
using Taken = std::vector<std::vector<std::uint32_t>>;

std::shared_ptr<const Placement> table(std::uint64_t units, Taken taken, std::optional<std::uint64_t> unit_elems = {}) {
  return std::make_shared<const Placement>(Placement{units, unit_elems, std::move(taken)});
}

using Table = std::shared_ptr<const Placement>;

/// A part that is placed along the rule's dim, or whole.
struct OfDim {
  const char* name;
  Table placement = nullptr;
};

PartitionRule rule(std::uint32_t dim, const std::vector<OfDim>& parts) {
  PartitionRule made;
  made.stored_name = "s";
  made.stack_dim = dim;
  for (const OfDim& part : parts) {
    made.parts.push_back({part.name});
    if (part.placement) made.parts.back().placed = {{dim, part.placement}};
  }
  return made;
}

StageMetadata with_parameter(const ParallelParameter& parameter) {
  return {{parameter}, {}};
}

/// "0: [2:4, 0:3] at [0, 0]": the part's number, or "-" for padding, the box and where it lies.
std::string text_of(const PartPiece& piece) {
  return (piece.is_padding ? "-" : std::to_string(piece.part)) + ": " + to_string(piece.box) + " at " +
         to_string(piece.stored_begin);
}

TEST_CASE("Which boxes a rank has of which originals") {
  struct Case {
    const char* what;
    PartitionRule rule;
    std::uint32_t rank;
    std::vector<Dims> originals;
    Dims stored;
    std::vector<std::string> pieces;
  };
  PartitionRule whole_rule = rule(0, {{"w"}});
  PartitionRule one_of = rule(0, {{"a"}, {"b"}});
  one_of.one_of_parts = true;
  PartitionRule beside = rule(1, {{"a", table(2, {{0}, {1}})}, {"b", table(2, {{0}, {1}})}});
  beside.stack_dim = 0;
  PartitionRule slices = rule(1, {{"w", table(2, {{0}, {1}})}});
  slices.parts[0].placed.insert(slices.parts[0].placed.begin(), {0, table(2, {{0}, {0}, {1}, {1}})});
  PartitionRule diagonal = rule(0, {{"a", table(2, {{0}, {1}}, 2)}, {"b", table(2, {{0}, {1}}, 1)}});
  diagonal.parts[0].placed.push_back({1, table(2, {{0, 1, 2, 2, 2}}, 1)});
  diagonal.parts[1].placed.push_back({1, table(3, {{3, 3, 0, 1, 2}}, 1)});
  const std::vector<Case> cases = {
      {"all of it", whole_rule, 3, {{4, 3}}, {4, 3}, {"0: [0:4, 0:3] at [0, 0]"}},
      {"a scalar", whole_rule, 0, {{}}, {}, {"0: [] at []"}},
      {"rows", rule(0, {{"w", table(2, {{0}, {1}})}}), 1, {{4, 3}}, {2, 3}, {"0: [2:4, 0:3] at [0, 0]"}},
      {"columns", rule(1, {{"w", table(3, {{0}, {1}, {2}})}}), 2, {{4, 3}}, {4, 1}, {"0: [0:4, 2:3] at [0, 0]"}},
      {"every other chunk",
       rule(0, {{"w", table(4, {{0, 2}, {1, 3}})}}),
       1,
       {{8}},
       {4},
       {"0: [2:4] at [0]", "0: [6:8] at [2]"}},
      {"neighbours are one box, in stored order",
       rule(0, {{"w", table(8, {{2, 3, 6, 0}})}}),
       0,
       {{8, 2}},
       {4, 2},
       {"0: [2:4, 0:2] at [0, 0]", "0: [6:7, 0:2] at [2, 0]", "0: [0:1, 0:2] at [3, 0]"}},
      {"a table of few ranks repeats", rule(0, {{"w", table(2, {{0}, {1}})}}), 5, {{4}}, {2}, {"0: [2:4] at [0]"}},
      {"padding at the end",
       rule(0, {{"w", table(3, {{0, 1}, {2, 3}})}}),
       1,
       {{6, 2}},
       {4, 2},
       {"0: [4:6, 0:2] at [0, 0]", "-: [2:4, 0:2] at [2, 0]"}},
      {"nothing but padding", rule(0, {{"w", table(1, {{0}, {1}})}}), 1, {{3}}, {3}, {"-: [0:3] at [0]"}},
      {"parts one after the other",
       rule(0, {{"a", table(2, {{0}, {1}}, 2)}, {"b", table(2, {{0}, {1}}, 1)}}),
       1,
       {{4, 3}, {2, 3}},
       {3, 3},
       {"0: [2:4, 0:3] at [0, 0]", "1: [1:2, 0:3] at [2, 0]"}},
      {"parts under each other, cut along the other dim",
       beside,
       1,
       {{3, 4}, {3, 4}},
       {6, 2},
       {"0: [0:3, 2:4] at [0, 0]", "1: [0:3, 2:4] at [3, 0]"}},
      {"one of two slices, cut along the other dim", slices, 3, {{4, 6}}, {2, 3}, {"0: [2:4, 3:6] at [0, 0]"}},
      {"each of the parts", one_of, 1, {{4}, {4}}, {4}, {"0: [0:4] at [0]", "1: [0:4] at [0]"}},
      {"a block diagonal",
       diagonal,
       1,
       {{4, 2}, {2, 3}},
       {3, 5},
       {"0: [2:4, 0:2] at [0, 0]", "-: [0:2, 2:5] at [0, 2]", "-: [2:3, 0:2] at [2, 0]", "1: [1:2, 0:3] at [2, 2]"}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.what) {
      CHECK(stored_shape(c.rule, c.rank, c.originals) == c.stored);
      CHECK(logical_shapes(c.rule, c.rank, c.stored) == c.originals);
      std::vector<std::string> pieces;
      for (const PartPiece& piece : pieces_of(c.rule, c.rank, c.originals)) pieces.push_back(text_of(piece));
      CHECK(pieces == c.pieces);
    }
  }
}

TEST_CASE("Sizes that do not come out even have no shape") {
  const PartitionRule rows = rule(0, {{"w", table(4, {{0, 2}, {1, 3}})}});
  CHECK_FALSE(stored_shape(rows, 0, {{6, 2}}));
  CHECK_FALSE(logical_shapes(rows, 0, {3, 2}));
  CHECK_FALSE(logical_shapes(rows, 0, {}));  // a scalar has no dim 0
  CHECK_FALSE(stored_shape(rows, 0, {{}}));
  CHECK_FALSE(logical_shapes(rule(0, {{"w", table(4096, {{0}})}}), 0, {std::uint64_t{1} << 60}));  // 2^72 elements
  const PartitionRule two = rule(0, {{"a", table(2, {{0}, {1}}, 2)}, {"b", table(2, {{0}, {1}}, 1)}});
  CHECK_FALSE(logical_shapes(two, 0, {4, 3}));          // its chunks make 3 rows
  CHECK_FALSE(stored_shape(two, 0, {{4, 3}, {4, 3}}));  // b's chunks are of 1
  CHECK_FALSE(stored_shape(two, 0, {{4, 3}, {2, 4}}));  // other columns
  CHECK_FALSE(stored_shape(two, 0, {{4, 3}, {2}}));     // another number of dims
  PartitionRule beside = rule(1, {{"a"}, {"b"}});
  beside.stack_dim = 0;
  CHECK_FALSE(logical_shapes(beside, 0, {5, 2}));  // two parts do not share 5 rows
  PartitionRule number = rule(0, {});
  number.constant = {DType::kI32, {1}, {{0}, {1}}};
  CHECK(stored_shape(number, 1, {}) == Dims{1});
  CHECK(logical_shapes(number, 1, {1}) == std::vector<Dims>{});
  CHECK_FALSE(logical_shapes(number, 1, {2}));
}

TEST_CASE("The file has the dims in its own order, and slices in front of the parts they are stacked along") {
  PartitionRule swapped = rule(1, {{"w", table(2, {{0}, {1}})}});
  swapped.file_dims = {0, 2, 1};
  CHECK(file_shape(swapped, 0, {4, 3, 2}) == Dims{4, 2, 3});
  CHECK(view_of_file(swapped, 0, View::of({4, 2, 3})) == View{{4, 3, 2}, {6, 1, 3}});
  CHECK(view_of_file(swapped, 0, View::of({2, 3})) == View::of({2, 3}));  // refused by its shape later
  CHECK(file_shape(swapped, 0, {4, 3}) == Dims{4, 3});
  PartitionRule experts = rule(0, {{"a", table(1, {{0}, {}})},
                                   {"b", table(1, {{0}, {}})},
                                   {"c", table(1, {{}, {0}})},
                                   {"d", table(1, {{}, {0}})},
                                   {"e", table(1, {{0}, {}})},
                                   {"f", table(1, {{0}, {}})}});
  for (std::uint32_t i = 0; i < 6; ++i) experts.parts[i].slice = i / 2;
  CHECK(slices_on(experts, 0) == 2);
  CHECK(slices_on(experts, 1) == 1);
  CHECK(file_shape(experts, 0, {8, 3}) == Dims{2, 4, 3});
  CHECK(view_of_file(experts, 0, View::of({2, 4, 3})) == View::of({8, 3}));
  CHECK_FALSE(view_of_file(experts, 0, {{2, 4, 3}, {3, 6, 1}}));
  experts.file_dims = {1, 2, 0};
  CHECK(file_shape(experts, 0, {8, 3}) == Dims{4, 3, 2});
  CHECK(view_of_file(experts, 1, View::of({4, 3, 1})) == View::of({4, 3}));
}

TEST_CASE("A stride deals as many parts of the dim to each rank, one of each of as many matrices") {
  for (const std::uint32_t dim : {0u, 1u}) {
    const PartitionRule made = partition_rule({"w", true, dim, 3, 4}, 4);
    CHECK(split_dim(made) == dim);
    CHECK(made.parts.at(0).placed.at(0).placement->of(2) == std::vector<std::uint32_t>{2, 6, 10});
  }
}

TEST_CASE("Experts stacked along the dim that is split are on one expert-parallel rank each, those beside it sliced") {
  ParallelParameter parameter{"w", true, 0, 4, 2};  // four matrices, over 2 tensor-parallel ranks
  parameter.expert_partitions = 2;
  const PartitionRule along = partition_rule(parameter, 2, 2);
  CHECK(along.expert_parallel);
  CHECK(along.parts[0].placed.at(0).placement->taken == Taken{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  parameter.partition_dim = 1;
  parameter.partition_stride = 1;
  const PartitionRule beside = partition_rule(parameter, 2, 2);
  REQUIRE(beside.parts[0].placed.size() == 2);
  CHECK(split_dim(beside) == 1);
  CHECK(beside.parts[0].placed[1].placement->taken == Taken{{0}, {1}});
  CHECK(beside.parts[0].placed[0].placement->taken == Taken{{0}, {0}, {1}, {1}});
  parameter.expert_partitions = 1;
  parameter.expert_rank = 1;
  const PartitionRule single = partition_rule(parameter, 2, 2);
  CHECK(single.is_on(1));
  CHECK_FALSE(single.is_on(0));
}

TEST_CASE("Matrices packed in one are split each by itself, replicated ones not") {
  ParallelParameter parameter{"w", true, 0, 1, 2};
  parameter.packed = {{4, false}, {2, true}};
  const PartitionRule packed = partition_rule(parameter, 2);
  CHECK(packed.parts[0].placed.at(0).placement->units == 3);
  CHECK(packed.parts[0].placed.at(0).placement->unit_elems == 2);
  CHECK(packed.parts[0].placed.at(0).placement->taken == Taken{{0, 2}, {1, 2}});
}

TEST_CASE("Metadata that cuts its tensors into more chunks than any model has is refused before they fill the memory") {
  StageMetadata metadata;
  for (std::uint32_t i = 0; i < 8; ++i)
    metadata.parameters.push_back({"w" + std::to_string(i), true, 0, 4000 + i, 1024});
  check_refused([&] { partition_rules(metadata, 1024); },
                {.says = "more than 16777216 chunks over 1024 ranks", .hint = "the metadata is damaged"});
}

TEST_CASE("A fused parameter takes each linear's slice at the size that the spec gives") {
  StageMetadata metadata = with_parameter({"m.qkv.weight", true, 0, 3, 2});
  metadata.modules.push_back({"m", {FusedLinearsSpec{"qkv", {"q", "k", "v"}, false, 0, {8, 4, 4}, 2}}});
  const PartitionRule fused = partition_rules(metadata, 2)[0];
  CHECK(fused.label == PartitionLabel::kFused);
  CHECK(fused.from_spec);
  REQUIRE(fused.parts.size() == 3);
  CHECK(fused.parts[1].logical_name == "m.k.weight");
  CHECK(stored_shape(fused, 1, {{8, 3}, {4, 3}, {4, 3}}) == Dims{8, 3});
  CHECK(logical_shapes(fused, 1, {8, 3}) == std::vector<Dims>{{8, 3}, {4, 3}, {4, 3}});
  CHECK_FALSE(logical_shapes(fused, 1, {9, 3}));
  CHECK_FALSE(stored_shape(fused, 1, {{8, 3}, {6, 3}, {4, 3}}));
}

TEST_CASE("The spec rules a fused grouped-query parameter, whatever its own metadata says") {
  StageMetadata metadata = with_parameter({"a.qkv_proj.weight_qkv", false, 0, 1, 1});
  GQAQKVColumnParallelLinearSpec spec{"qkv_proj", "q", "k", "v", "o", 8, 2, 2, 8, 4, true, false, 4};
  metadata.modules.push_back({"a", {spec}});
  metadata.parameters.push_back({"a.o.weight", true, 1, 1, 4});
  const auto rules = partition_rules(metadata, 4);
  CHECK(rules[0].label == PartitionLabel::kGroupedQuery);
  REQUIRE(rules[0].parts.size() == 3);
  CHECK(rules[0].parts[0].placed.at(0).placement->of(3) ==
        std::vector<std::uint32_t>{6, 7});  // slot 3: head 1, replica 1
  CHECK(rules[0].parts[1].placed.at(0).placement->of(3) == std::vector<std::uint32_t>{1});
  CHECK(rules[1].parts[0].placed.at(0).placement->of(2) ==
        std::vector<std::uint32_t>{2, 3});  // slot 2: head 0, replica 1
  CHECK(split_dim(rules[1]) == 1);
}

TEST_CASE("What specs expect of entries leaves out fused grouped-query parameters") {
  StageMetadata metadata;
  metadata.parameters = {{"a.qkv_proj.weight_qkv", false, 0, 1, 1},
                         {"a.o.weight", true, 1, 1, 4},
                         {"m.qkv.weight", true, 0, 3, 4},
                         {"m.qkv.lora_A.weight", false, 0, 1, 1},
                         {"norm.weight", false, 0, 1, 1}};
  metadata.modules = {
      {"a", {GQAQKVColumnParallelLinearSpec{"qkv_proj", "q", "k", "v", "o", 8, 2, 2, 8, 4, true, false, 4}}},
      {"m", {FusedLinearsSpec{"qkv", {"q", "k", "v"}, false, 0, {8, 4, 4}, 4}}}};
  const auto entries = required_splits(metadata);
  REQUIRE(entries.size() == 3);
  CHECK((entries[0].name == "a.o.weight" && entries[0].dim == 1 && entries[0].stride == 1));
  CHECK((entries[1].name == "m.qkv.weight" && entries[1].dim == 0 && entries[1].stride == 3));
  CHECK((entries[2].name == "m.qkv.lora_A.weight" && !entries[2].is_split));
}

/// A rule of random tables, whose chunks sizes are given; every chunk of every part is on some rank.
PartitionRule random_rule(Random& random, std::uint32_t ranks, std::vector<Dims>& originals) {
  const auto dim = static_cast<std::uint32_t>(random() % 2);
  PartitionRule made = rule(dim, {});
  const Dims base{pick(random, 1, 4), pick(random, 1, 4), pick(random, 0, 3)};
  const auto parts = pick(random, 1, 3);
  if (parts > 1 && random() % 2 == 0) made.stack_dim = 1 - dim;
  for (std::uint64_t p = 0; p < parts; ++p) {
    const bool alike = made.stack_dim != dim;  // the same chunks of the same size as the part before
    Dims shape = base;
    if (alike && p > 0) {
      made.parts.push_back({"p" + std::to_string(p), made.parts.front().placed});
      originals.push_back(originals.front());
      continue;
    }
    const std::uint64_t each = pick(random, 1, 3);
    const std::uint64_t units = pick(random, 1, each * ranks);
    const std::uint64_t unit = pick(random, 1, 3);
    Taken taken(ranks);
    std::vector<std::uint32_t> slots(each * ranks);
    for (std::uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::shuffle(slots.begin(), slots.end(), random);
    for (std::size_t i = 0; i < slots.size(); ++i) taken[i / each].push_back(slots[i]);
    shape[dim] = unit * units;
    made.parts.push_back({"p" + std::to_string(p), {{dim, table(units, std::move(taken), unit)}}});
    originals.push_back(shape);
  }
  return made;
}

TEST_CASE("Pieces of any rule tile every rank's tensor, and its shapes go there and back") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto ranks = static_cast<std::uint32_t>(pick(random, 1, 5));
    std::vector<Dims> originals;
    const PartitionRule made = random_rule(random, ranks, originals);
    std::vector<std::uint64_t> held(made.parts.size());  // elements, over all ranks
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const auto stored = stored_shape(made, rank, originals);
      REQUIRE(stored);
      CHECK(logical_shapes(made, rank, *stored) == originals);
      reshard::SourceMap map;
      map.files.push_back({{"rank", 0}});
      map.add_pieces(map.add_stored({"s", DType::kU8, *stored}), made, rank);
      CHECK_NOTHROW(validate_tiling(map));
      for (const PartPiece& piece : pieces_of(made, rank, originals))
        if (!piece.is_padding) held[piece.part] += volume(piece.box);
    }
    for (std::size_t p = 0; p < originals.size(); ++p) CHECK(held[p] == num_elems(originals[p]));
  }
}

}  // namespace
}  // namespace reshard::test
