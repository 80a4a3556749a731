#include "reshard/plan/job/program.h"

#include <memory>

#include "reshard/layouts/map/whole_map.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

/// A source or target of files that each hold some rows of "w", a [rows, 4] of F32.
template <typename Map = SourceMap>
Map of_rows(std::uint64_t rows, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& files) {
  Map map;
  map.add_logical({"w", DType::kF32, {rows, 4}}, {});
  for (const auto& [begin, end] : files) {
    map.files.emplace_back().path = "f" + std::to_string(map.files.size());
    const auto file = static_cast<std::uint32_t>(map.files.size() - 1);
    const auto stored = map.add_stored({"w", DType::kF32, {end - begin, 4}, file});
    map.pieces[0].push_back({stored, {{begin, 0}, {end - begin, 4}}, {0, 0}});
  }
  return map;
}

TEST_CASE("A program reads each element from the first file that has it") {
  const SourceMap source = of_rows(8, {{0, 4}, {2, 6}, {4, 8}});
  const TargetMap target = of_rows<TargetMap>(8, {{0, 8}});
  const Program program = make_program(source, target);
  REQUIRE(program.transfers.size() == 1);
  const auto& reads = program.transfers[0].source->reads;
  REQUIRE(reads.size() == 3);
  CHECK(reads[0].box == Box{{0, 0}, {4, 4}});
  CHECK(reads[1].box == Box{{4, 0}, {2, 4}});
  CHECK(reads[1].stored_begin == Dims{2, 0});
  CHECK(reads[2].box == Box{{6, 0}, {2, 4}});
  CHECK(program.read_bytes == 8ull * 16);
  CHECK(program.check_bytes == 4ull * 16);  // what the files hold twice is compared
  REQUIRE(program.transfers[0].source->checks.size() == 2);
  CHECK(program.transfers[0].source->checks[0].box == Box{{2, 0}, {2, 4}});
  CHECK(program.transfers[0].source->checks[1].box == Box{{4, 0}, {2, 4}});
  CHECK(program.write_bytes == 8ull * 16);
}

TEST_CASE("A part that no file holds, or only as a tied copy, is an error that names the box") {
  const SourceMap source = of_rows(8, {{0, 3}, {5, 8}});
  const TargetMap target = of_rows<TargetMap>(8, {{0, 8}});
  check_refused([&] { make_program(source, target); }, {.tensor = "w", .says = "[3:5, 0:4] of [8, 4]"});
  check_refused([&] { make_reading_program(source); }, {.tensor = "w"});
  SourceMap tied = of_rows(8, {{0, 4}, {4, 8}});
  tied.stored[1].tied = true;
  check_refused([&] { make_program(tied, target); }, {.tensor = "w"});
}

TEST_CASE("Both sides must have the same tensors, dtypes and shapes") {
  const SourceMap source = of_rows(8, {{0, 8}});
  TargetMap more = of_rows<TargetMap>(8, {{0, 8}});
  more.add_logical({"extra", DType::kF32, {1}}, {});
  SourceMap more_source = source;
  more_source.add_logical({"extra", DType::kF32, {1}}, {});
  check_refused([&] { make_program(source, more); }, {.tensor = "extra", .says = "the target needs it"});
  check_refused([&] { make_program(more_source, of_rows<TargetMap>(8, {{0, 8}})); }, {.tensor = "extra"});
  const TargetMap less = of_rows<TargetMap>(4, {{0, 4}});
  check_refused([&] { make_program(source, less); }, {.says = {"F32 [8, 4]", "F32 [4, 4]"}});
}

TEST_CASE("A target that is not tiled, or has no place for a part of a tensor, is refused before anything else") {
  const SourceMap source = of_rows(8, {{0, 8}});
  const TargetMap split = of_rows<TargetMap>(8, {{0, 3}, {5, 8}});
  TargetMap target = of_rows<TargetMap>(8, {{0, 8}});
  target.pieces[0][0].box.size[0] = 7;
  check_refused([&] { make_program(source, target); }, {.says = "4 of its 32 elements"});
  check_refused([&] { make_program(source, split); },
                {.kind = ErrorKind::kInternal, .tensor = "w", .says = "[3:5, 0:4]"});
}

TEST_CASE("Pieces are grouped by the tensor that stores them") {
  TargetMap target = of_rows<TargetMap>(8, {{0, 4}, {4, 8}});
  target.pieces[0] = {{1, {{4, 0}, {2, 4}}, {0, 0}},
                      {0, {{0, 0}, {2, 4}}, {0, 0}},
                      {1, {{6, 0}, {2, 4}}, {2, 0}},
                      {0, {{2, 0}, {2, 4}}, {2, 0}}};
  const SourceMap source = of_rows(8, {{0, 8}});
  const Program program = make_program(source, target);
  std::vector<std::uint32_t> order;
  for (const Piece& piece : program.transfers[0].writes({&source, &target})) order.push_back(piece.stored);
  CHECK(order == std::vector<std::uint32_t>{0, 0, 1, 1});
}

TEST_CASE("A tensor without elements is moved by a program that reads nothing") {
  const SourceMap source = of_rows(0, {{0, 0}});
  const TargetMap target = of_rows<TargetMap>(0, {{0, 0}});
  const Program program = make_program(source, target);
  CHECK(program.transfers.at(0).source->reads.empty());
  CHECK(program.write_bytes == 0);
}

TEST_CASE("A reading program compares nothing") {
  SourceMap source = of_rows(8, {{0, 8}, {0, 8}});
  source.stored[1].tied = true;
  const Program program = make_reading_program(source);
  CHECK_FALSE(program.transfers.at(0).target);
  CHECK(program.read_bytes == 8ull * 16);
  CHECK(program.check_bytes == 0);
  CHECK(program.transfers.at(0).source->checks.empty());
}

TEST_CASE("A program is a value that means the same tensors in copies of its maps") {
  const auto source = std::make_unique<SourceMap>(of_rows(8, {{0, 4}, {2, 6}, {4, 8}}));
  const auto target = std::make_unique<TargetMap>(of_rows<TargetMap>(8, {{0, 4}, {4, 8}}));
  Program program = make_program(*source, *target);
  const Program copy = program;
  CHECK(copy == program);
  const Program moved = std::move(program);
  CHECK(moved == copy);
  const SourceMap other_source = *source;
  const TargetMap other_target = *target;
  const ProgramMaps maps{&other_source, &other_target};
  CHECK(&moved.transfers.at(0).tensor(maps) == &other_source.logical[0]);
  CHECK(moved.transfers.at(0).result(maps) == &other_target.logical[0]);
  CHECK(moved.transfers.at(0).writes(maps).data() == other_target.pieces[0].data());
  CHECK(make_program(other_source, other_target) == copy);
}

TEST_CASE("Programs of maps that differ in one piece are different") {
  const Program program = make_program(of_rows(8, {{0, 4}, {4, 8}}), of_rows<TargetMap>(8, {{0, 8}}));
  CHECK(make_program(of_rows(8, {{0, 4}, {4, 8}}), of_rows<TargetMap>(8, {{0, 8}})) == program);
  CHECK_FALSE(make_program(of_rows(8, {{0, 5}, {5, 8}}), of_rows<TargetMap>(8, {{0, 8}})) == program);
  CHECK_FALSE(make_program(of_rows(8, {{0, 4}, {3, 8}}), of_rows<TargetMap>(8, {{0, 8}})) == program);
}

}  // namespace
}  // namespace reshard::test
