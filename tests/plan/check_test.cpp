#include "reshard/plan/check.h"

#include "reshard/plan/program.h"
#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

/// "w", a vector of 4 elements, in a file of tensor-parallel rank 0 and once more in one of rank 1.
TensorMap two_ranks(DType dtype, CutKind kind, std::optional<std::uint64_t> filler = {}) {
  TensorMap map;
  map.add_logical({"w", dtype, {4}, filler}, {});
  for (const std::uint32_t tp_rank : {0u, 1u}) {
    TensorFile file;
    file.path = "rank" + std::to_string(tp_rank);
    file.tp_rank = tp_rank;
    map.files.push_back(file);
    const auto bytes = num_bytes(dtype, {4}).value();
    const auto stored = map.add_stored({"stored_w", dtype, {4}, tp_rank, 0, bytes, kind});
    map.pieces[0].push_back({stored, {{0}, {4}}, {0}});
  }
  return map;
}

/// The check of rank 1's tensor.
Check check_of(const TensorMap& map) {
  return make_reading_program(map).transfers.at(0).source->checks.back();
}

Error failure_of(const TensorMap& map, std::string_view detail = {}) {
  const std::vector<Piece> reads{map.pieces[0][0]};
  return failed_check(map, 0, reads, make_check(map, 0, reads, map.pieces[0][1]), {2}, detail);
}

TEST_CASE("A replica that differs names both files and the element, and the detail that is known") {
  const Error error = failure_of(two_ranks(DType::kF32, CutKind::kReplicated), "by much");
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == "rank1");
  CHECK(error.tensor() == "stored_w");
  CHECK_THAT(error.what(), Says("is a replica of w in rank0, but differs from it, first at element [2]; by much"));
  CHECK_THAT(error.hint(), Says("mixed up"));
}

TEST_CASE("What a check that fails says depends on the reason for it") {
  TensorMap tied = two_ranks(DType::kF32, CutKind::kTied);
  tied.stored[0].kind = CutKind::kWhole;
  CHECK_THAT(failure_of(tied).hint(), Says("tie_word_embeddings"));
  const Error padding = failure_of(two_ranks(DType::kF32, CutKind::kColumn, 0));
  CHECK_THAT(padding.what(), Says("holds other values than zeros in its padding, first at [2]"));
  CHECK_THAT(padding.hint(), Says("config.json belongs to another model"));
  CHECK_THAT(failure_of(two_ranks(DType::kF32, CutKind::kColumn, 7)).what(), Says("the lowest of its dtype"));
  const Error number = failure_of(two_ranks(DType::kI32, CutKind::kConstant, 3));
  CHECK_THAT(number.what(), Says("is the number of another rank than 3"));
  CHECK_THAT(number.hint(), Says("renamed or swapped"));
}

TEST_CASE("Where equal replicas are the only evidence, their difference is never accepted and has a hint of its own") {
  TensorMap map = two_ranks(DType::kF32, CutKind::kColumn);
  const std::vector<Piece> reads{map.pieces[0][0]};
  CHECK(make_check(map, 0, reads, map.pieces[0][1]).may_differ);
  map.proved_by_copies = "try another number of heads";
  CHECK_FALSE(check_of(map).may_differ);
  CHECK(failure_of(map).hint() == "try another number of heads");
}

TEST_CASE("Only replicas may differ, and only trained replicas of another rank may drift") {
  const auto check = [](const TensorMap& map) { return make_check(map, 0, {map.pieces[0][0]}, map.pieces[0][1]); };
  const TensorMap replicated = two_ranks(DType::kBF16, CutKind::kReplicated);
  CHECK(check(replicated).reason == CheckReason::kReplica);
  CHECK(check(replicated).may_drift);
  CHECK(check(replicated).may_differ);
  CHECK_FALSE(check(two_ranks(DType::kF32, CutKind::kReplicated)).may_drift);
  CHECK_FALSE(check(two_ranks(DType::kBF16, CutKind::kGroupedQuery)).may_drift);  // repeated heads train as one
  TensorMap same_rank = replicated;
  same_rank.files[1].tp_rank = 0;  // another data-parallel rank saved it again
  CHECK_FALSE(check(same_rank).may_drift);
  CHECK(check(same_rank).may_differ);
  for (const TensorMap& map :
       {two_ranks(DType::kBF16, CutKind::kTied), two_ranks(DType::kBF16, CutKind::kReplicated, 0),
        two_ranks(DType::kI32, CutKind::kConstant, 0)}) {
    CHECK_FALSE(check(map).may_drift);
    CHECK_FALSE(check(map).may_differ);
  }
}

}  // namespace
}  // namespace reshard::test
