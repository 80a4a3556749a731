#include "reshard/layouts/map/chunked_map.h"

#include "support/refusals.h"

namespace reshard::test {
namespace {

ChunkedTensor matrix(std::uint64_t rows, std::uint64_t columns) {
  return {"entry", "w", DType::kU16, {rows, columns}, {}};
}

TEST_CASE("Chunks that leave holes or overlap are refused with the tensor and what says so") {
  const auto refused = [](ChunkedTensor tensor, const std::string& says) {
    check_refused([&] { validate_chunks({tensor}, "d/.metadata"); },
                  {.path = "d/.metadata", .tensor = "entry", .says = says});
  };
  ChunkedTensor tensor = matrix(4, 4);
  refused(tensor, "its 0 chunks have 0 of its 16 elements");
  tensor.chunks = {{{{0, 0}, {3, 4}}}};
  refused(tensor, "its 1 chunks have 12 of its 16 elements");
  tensor.chunks.push_back({{{2, 0}, {2, 4}}});
  refused(tensor, "its 2 chunks overlap");
  tensor.chunks = {{{{0, 0}, {2, 4}}}, {{{0, 0}, {4, 2}}}};
  refused(tensor, "its box [0:2, 0:2] is filled twice");
  tensor.chunks = {{{{0, 0}, {2, 4}}}, {{{0, 0}, {2, 4}}}};
  refused(tensor, "its 1 chunks have 8 of its 16 elements");
  tensor.chunks.push_back({{{2, 0}, {2, 4}}});
  CHECK_NOTHROW(validate_chunks({tensor}, "f"));  // the first two are replicas
  tensor.chunks = {{{{0, 2}, {4, 2}}}, {{{0, 0}, {4, 2}}}};
  CHECK_NOTHROW(validate_chunks({tensor}, "f"));
  CHECK_NOTHROW(validate_chunks({matrix(0, 4)}, "f"));
}

TEST_CASE("Chunks become pieces in the order of rows") {
  ChunkedTensor tensor = matrix(4, 2);
  tensor.chunks = {{{{3, 0}, {1, 2}}, 1, 40}, {{{0, 0}, {3, 2}}, 0, 10, {1, 3}}};
  const SourceMap map = chunked_map({{{"a"}}, {{"b"}}}, {tensor}, "d");
  REQUIRE(map.logical.size() == 1);
  REQUIRE(map.pieces[0].size() == 2);
  const Piece& first = map.pieces[0][0];
  CHECK(first.box == Box{{0, 0}, {3, 2}});
  CHECK(map.stored[first.stored].offset_bytes == 10);
  CHECK(map.stored[first.stored].size_bytes() == 12);
  CHECK(map.stored[first.stored].strides() == Dims{1, 3});
  CHECK(map.stored[map.pieces[0][1].stored].file == 1);
  CHECK_NOTHROW(validate_tiling(map));
}

}  // namespace
}  // namespace reshard::test
