#include "reshard/plan/job/check.h"

#include "reshard/plan/job/program.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

using Kind = Constant::Kind;

/// "w", a vector of 4 elements, in a file of tensor-parallel rank 0 and once more in one of rank 1.
SourceMap two_ranks(DType dtype, std::optional<std::uint64_t> element_bits = {}, Kind kind = Kind::kPadding) {
  SourceMap map;
  LogicalTensor w{"w", dtype, {4}, {}};
  if (element_bits)
    w.computed = std::make_shared<Computed>(Computed{std::make_shared<Constant>(kind, dtype, *element_bits), {}});
  map.add_logical(w, {});
  for (const std::uint32_t tp_rank : {0u, 1u}) {
    SourceFile file;
    file.path = "rank" + std::to_string(tp_rank);
    file.tp_rank = tp_rank;
    map.files.push_back(file);
    const auto stored = map.add_stored({"stored_w", dtype, {4}, tp_rank});
    map.pieces[0].push_back({stored, {{0}, {4}}, {0}});
  }
  return map;
}

/// The same of a parameter that every rank has all of.
SourceMap replicated(DType dtype, std::optional<std::uint64_t> element_bits = {}) {
  SourceMap map = two_ranks(dtype, element_bits);
  for (StoredTensor& stored : map.stored) stored.replicated = true, stored.label = PartitionLabel::kReplicated;
  return map;
}

/// The same where rank 1's is a second name.
SourceMap tied(DType dtype) {
  SourceMap map = two_ranks(dtype);
  map.stored[1].tied = true;
  return map;
}

/// The check of rank 1's tensor.
Check check_of(const SourceMap& map) {
  return make_reading_program(map).transfers.at(0).source->checks.back();
}

Error failure_of(const SourceMap& map, std::string_view detail = {}) {
  const std::vector<Piece> reads{map.pieces[0][0]};
  return failed_check(map, 0, reads, make_check(map, 0, reads, map.pieces[0][1]), {2}, detail);
}

TEST_CASE("A replica that differs names both files and the element, and the detail that is known") {
  check_error(failure_of(replicated(DType::kF32), "by much"),
              {.path = "rank1",
               .tensor = "stored_w",
               .says = "is a replica of w in rank0, but differs from it, first at element [2]; by much",
               .hint = "mixed up"});
}

TEST_CASE("What a check that fails says depends on the reason for it") {
  const std::pair<SourceMap, Refusal> rows[] = {
      {tied(DType::kF32), {.hint = "tie_word_embeddings"}},
      {two_ranks(DType::kF32, 0),
       {.says = "contains values other than zeros in its padding, first at [2]",
        .hint = "config.json belongs to another model"}},
      {two_ranks(DType::kF32, 7), {.says = "the lowest of its dtype"}},
      {two_ranks(DType::kI32, 3, Kind::kRankNumber), {.says = "is not the number of 3", .hint = "renamed or swapped"}},
      {two_ranks(DType::kF32, 3, Kind::kRequired),
       {.says = "differs from the value that the layout has there, first at [2]",
        .hint = "belongs to another layout"}}};
  for (const auto& [map, refusal] : rows) check_error(failure_of(map), refusal);
}

TEST_CASE("Where equal replicas are the only evidence, their difference is never accepted and has a hint of its own") {
  SourceMap map = two_ranks(DType::kF32);
  const std::vector<Piece> reads{map.pieces[0][0]};
  CHECK(make_check(map, 0, reads, map.pieces[0][1]).may_differ);
  map.inferred_partition_hint = "try another number of heads";
  CHECK_FALSE(check_of(map).may_differ);
  CHECK(failure_of(map).hint() == "try another number of heads");
}

TEST_CASE("A replica that its rule keeps whole may differ without metadata, and heads may not") {
  SourceMap map = replicated(DType::kBF16);
  map.inferred_partition_hint = "try another number of heads";
  CHECK(check_of(map).may_differ);
  CHECK_THAT(failure_of(map).hint(), Says("`replicas` first takes the first rank's values"));
  for (StoredTensor& stored : map.stored) stored.label = PartitionLabel::kGroupedQuery;
  CHECK_FALSE(check_of(map).may_differ);
  CHECK(failure_of(map).hint() == "try another number of heads");
}

TEST_CASE("A replica that nothing declares whole may neither differ nor drift, and says why") {
  SourceMap map = replicated(DType::kBF16);
  map.logical[0].unconfirmed_hint = "nothing names it";
  CHECK_FALSE(check_of(map).may_differ);
  CHECK_FALSE(check_of(map).may_drift);  // parts of one vector may be as close to each other as drifted norms
  CHECK(failure_of(map).hint() == "nothing names it");
}

TEST_CASE("The hint for a state that differs is about its files, not about the model's") {
  SourceMap state = two_ranks(DType::kF32), padding = two_ranks(DType::kF32, 0);
  for (SourceMap* map : {&state, &padding}) map->logical[0].role = TensorRole::kState;
  const std::string of_files = "the files come from two saves, or rank files were swapped";
  check_error(failure_of(state), {.hint = {of_files, "`replicas` first takes"}});
  check_error(failure_of(padding), {.hint = of_files});
  state.inferred_partition_hint = "try another number of heads";
  check_error(failure_of(state), {.hint = {of_files, "`replicas` first has no effect"}});
}

TEST_CASE("Only replicas may differ, and only trained replicas of another rank may drift") {
  const auto check = [](const SourceMap& map) { return make_check(map, 0, {map.pieces[0][0]}, map.pieces[0][1]); };
  const SourceMap trained = replicated(DType::kBF16);
  CHECK(check(trained).reason == CheckReason::kReplica);
  CHECK(check(trained).may_drift);
  CHECK(check(trained).may_differ);
  CHECK_FALSE(check(replicated(DType::kF32)).may_drift);
  CHECK_FALSE(check(two_ranks(DType::kBF16)).may_drift);  // replicated heads train as one
  SourceMap same_rank = trained;
  same_rank.files[1].tp_rank = 0;  // another data-parallel rank saved it again
  CHECK_FALSE(check(same_rank).may_drift);
  CHECK(check(same_rank).may_differ);
}

TEST_CASE("A tied parameter, padding and a rank's number may neither drift nor differ") {
  const SourceMap map =
      GENERATE(tied(DType::kBF16), replicated(DType::kBF16, 0), two_ranks(DType::kI32, 0, Kind::kRankNumber),
               two_ranks(DType::kF32, 1, Kind::kRequired));
  const Check check = make_check(map, 0, {map.pieces[0][0]}, map.pieces[0][1]);
  CHECK_FALSE(check.may_drift);
  CHECK_FALSE(check.may_differ);
}

}  // namespace
}  // namespace reshard::test
