#include "reshard/layouts/map/tensor_map.h"

#include <chrono>

#include "support/refusals.h"

namespace reshard::test {
namespace {

/// One file, one logical tensor "w", one stored tensor "s" of the given shape, with pieces to be added.
SourceMap one_tensor(DType dtype, const Dims& logical, const Dims& stored) {
  SourceMap map;
  map.files.push_back({{"rank.safetensors", 0}});
  map.add_logical({"w", dtype, logical}, {});
  map.add_stored({"s", dtype, stored});
  return map;
}

/// One rank's chunks of "w" along dim 0.
PartitionRule rows_of_w(std::uint64_t units, std::vector<std::uint32_t> taken) {
  PartitionRule rule;
  rule.parts = {{"w", {{0, std::make_shared<const Placement>(Placement{units, {}, {std::move(taken)}})}}}};
  return rule;
}

TEST_CASE("Pieces that tile a stored tensor are accepted, in any order") {
  SourceMap map = one_tensor(DType::kF32, {4, 6}, {4, 6});
  map.pieces[0] = {{0, {{2, 0}, {2, 6}}, {2, 0}}, {0, {{0, 3}, {2, 3}}, {0, 3}}, {0, {{0, 0}, {2, 3}}, {0, 0}}};
  CHECK_NOTHROW(validate_tiling(map));
}

TEST_CASE("A hole in a stored tensor is an error that counts the elements") {
  SourceMap map = one_tensor(DType::kF32, {4, 6}, {4, 6});
  map.pieces[0] = {{0, {{0, 0}, {4, 5}}, {0, 0}}};
  check_refused([&] { validate_tiling(map); },
                {.path = "rank.safetensors", .tensor = "s", .says = "4 of its 24 elements"});
}

TEST_CASE("An overlap is an error that names the box, even where the count of elements is right") {
  SourceMap map = one_tensor(DType::kF32, {4, 6}, {4, 6});
  map.pieces[0] = {{0, {{0, 0}, {2, 6}}, {0, 0}}, {0, {{0, 0}, {2, 6}}, {1, 0}}};
  check_refused([&] { validate_tiling(map); }, {.says = "[1:2, 0:6]"});
  map.pieces[0].push_back({0, {{0, 0}, {1, 6}}, {3, 0}});
  CHECK_THAT(error_of([&] { validate_tiling(map); }).what(), Says("filled twice"));
}

TEST_CASE("Many pieces are proved to tile a tensor, or not, in little time") {
  constexpr std::uint64_t kRows = 300, kColumns = 300;
  SourceMap map = one_tensor(DType::kU8, {kRows, 2 * kColumns, 3}, {kRows, 2 * kColumns, 3});
  for (std::uint64_t row = 0; row < kRows; ++row)
    for (std::uint64_t column = 0; column < kColumns; ++column) {
      const Dims begin{row, 2 * (kColumns - 1 - column), 0};
      map.pieces[0].push_back({0, {begin, {1, 2, 3}}, begin});
    }
  const auto begin = std::chrono::steady_clock::now();
  CHECK_NOTHROW(validate_tiling(map));
  const auto moved = [&](const Dims& to) {
    SourceMap other = map;
    other.pieces[0][777].box.begin = other.pieces[0][777].stored_begin = to;
    return error_of([&] { validate_tiling(other); });
  };
  const Dims place = map.pieces[0][777].box.begin;
  CHECK_THAT(moved({place[0], place[1] + 1, 0}).what(), Says("its pieces overlap and leave gaps"));
  CHECK_THAT(moved({place[0] + 1, place[1], 0}).what(), Says("its pieces overlap and leave gaps"));
  SourceMap less = map;
  less.pieces[0].pop_back();
  CHECK_THAT(error_of([&] { validate_tiling(less); }).what(), Says("6 of its 540000 elements belong to no tensor"));
  SourceMap more = map;
  more.pieces[0].push_back(more.pieces[0].front());
  CHECK_THAT(error_of([&] { validate_tiling(more); }).what(), Says("its pieces overlap"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("A piece outside its tensors, or of another dtype, is an error") {
  SourceMap outside_logical = one_tensor(DType::kF32, {3, 6}, {4, 6});
  outside_logical.pieces[0] = {{0, {{0, 0}, {4, 6}}, {0, 0}}};
  check_refused([&] { validate_tiling(outside_logical); }, {.says = "does not fit"});
  SourceMap outside_stored = one_tensor(DType::kF32, {4, 6}, {4, 6}), other_dtype = outside_stored;
  outside_stored.pieces[0] = {{0, {{0, 0}, {4, 6}}, {UINT64_MAX, 0}}};
  check_refused([&] { validate_tiling(outside_stored); }, {.tensor = "s"});
  other_dtype.stored[0].dtype = DType::kI32;
  other_dtype.pieces[0] = {{0, {{0, 0}, {4, 6}}, {0, 0}}};
  check_refused([&] { validate_tiling(other_dtype); }, {});
}

TEST_CASE("A box that splits a packed byte is an error that names dtype and box") {
  SourceMap map = one_tensor(DType::kF4, {4, 6}, {4, 3});
  map.pieces[0] = {{0, {{0, 0}, {4, 3}}, {0, 0}}};
  check_refused([&] { validate_tiling(map); },
                {.kind = ErrorKind::kUsage, .tensor = "w", .says = {"[0:4, 0:3]", "F4 have 4 bits"}});
  SourceMap even = one_tensor(DType::kF4, {4, 8}, {4, 4});
  even.pieces[0] = {{0, {{0, 4}, {4, 4}}, {0, 0}}};
  CHECK_NOTHROW(validate_tiling(even));
}

TEST_CASE("Scalars and tensors without elements are tiled too") {
  SourceMap scalar = one_tensor(DType::kF32, {}, {});
  CHECK_THAT(error_of([&] { validate_tiling(scalar); }).what(), Says("1 of its 1 elements"));
  scalar.add_whole(0, "w");
  CHECK_NOTHROW(validate_tiling(scalar));
  SourceMap empty = one_tensor(DType::kF4, {0, 3}, {0, 3});
  empty.add_pieces(0, rows_of_w(2, {1}), 0);
  CHECK_NOTHROW(validate_tiling(empty));
}

TEST_CASE("A box that does not fit the stored shape is an error with the shape and the dim") {
  SourceMap map = one_tensor(DType::kF32, {8, 2}, {3, 2});
  const PartitionRule rule = rows_of_w(4, {0, 2});
  check_refused(
      [&] { map.add_pieces(0, rule, 0); },
      {.path = "rank.safetensors", .tensor = "s", .says = {"[3, 2]", "does not fit its partition along dim 0"}});
}

TEST_CASE("A logical tensor that two files make differently is an error that shows both") {
  SourceMap map = one_tensor(DType::kF32, {8, 2}, {8, 2});
  const LogicalTensor same{"w", DType::kF32, {8, 2}}, cast{"w", DType::kF16, {8, 2}}, wider{"w", DType::kF32, {8, 3}};
  CHECK(map.add_logical(same, "b") == 0);
  const auto add = [&](const LogicalTensor& tensor) { map.add_logical(tensor, "b"); };
  check_refused([&] { add(cast); }, {.path = "b", .tensor = "w", .says = {"F16 [8, 2]", "F32 [8, 2]"}});
  check_refused([&] { add(wider); }, {.path = "b", .tensor = "w", .says = "[8, 3]"});
}

TEST_CASE("What is known of a source's tensors follows their names, and goes with a tied tensor") {
  SourceMap map;
  for (const char* name : {"a", "b"}) map.add_logical({name, DType::kF32, {1}}, {});
  map.logical[0].model_dtype = DType::kBF16;
  map.logical[1].unconfirmed_hint = "look";
  map.rename_logical({"b", "c"});
  CHECK(map.logical[0].model_dtype == DType::kBF16);
  CHECK_FALSE(map.logical[1].model_dtype);
  CHECK(map.logical[0].unconfirmed_hint.empty());
  CHECK(map.logical[1].unconfirmed_hint == "look");
  SourceMap all;
  all.append(map, "first/");
  CHECK(all.logical[0].model_dtype == DType::kBF16);
  CHECK(all.logical[1].unconfirmed_hint == "look");
  map.tie_logical(1, 0);
  CHECK(map.logical[0].unconfirmed_hint.empty());
  CHECK(map.file_of({"s", DType::kF32, {1}}).path.empty());
}

TEST_CASE("Ordering the logical tensors keeps their pieces and finds them by name") {
  SourceMap map;
  map.files.push_back({{"f", 0}});
  for (const char* name : {"a", "b", "c"}) {
    map.add_logical({name, DType::kU8, {1}}, {});
    const auto stored = map.add_stored({name, DType::kU8, {1}});
    map.add_whole(stored, name);
  }
  map.order_logical({"c", "nobody", "a"});
  REQUIRE(map.logical.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(map.find_logical(map.logical[i].name) == i);
    CHECK(map.stored[map.pieces[i].at(0).stored].name.text() == map.logical[i].name);
  }
  CHECK(map.logical[0].name == "c");
  CHECK(map.logical[1].name == "a");
  CHECK_FALSE(map.find_logical("nobody"));
}

}  // namespace
}  // namespace reshard::test
