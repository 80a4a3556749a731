#include "reshard/layouts/map/chunked_map.h"

#include <numeric>

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
  const TensorMap map = chunked_map({{"a"}, {"b"}}, {tensor}, "d");
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

/// The element numbers that the map puts at each place of `logical`, of files in which element i has the number i.
std::vector<std::uint64_t> elements(const TensorMap& map, std::uint32_t logical) {
  const Dims& shape = map.logical[logical].shape;
  const Dims steps = c_strides(shape);
  std::vector<std::uint64_t> found(*num_elems(shape), UINT64_MAX);
  for (const Piece& piece : map.pieces[logical]) {
    const StoredTensor& stored = map.stored[piece.stored];
    const Dims strides = stored.strides();
    Dims index(shape.size());
    for (std::uint64_t i = 0; i < volume(piece.box); ++i) {
      std::uint64_t from = stored.offset_bytes / 2, to = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        from += (piece.stored_begin[d] + index[d]) * strides[d];
        to += (piece.box.begin[d] + index[d]) * steps[d];
      }
      CHECK(found[to] == UINT64_MAX);
      found[to] = from;
      for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == piece.box.size[d];) index[d] = 0;
    }
  }
  return found;
}

TEST_CASE("Interleaved rows are put into the halves of their heads, whatever the chunks") {
  constexpr std::uint64_t kHeads = 3, kHeadDim = 6, kColumns = 2, kRows = kHeads * kHeadDim;
  for (std::uint64_t cut = 0; cut <= kRows; ++cut)
    for (const bool transposed : {false, true}) {
      CAPTURE(cut, transposed);
      ChunkedTensor tensor = matrix(kRows, kColumns);
      tensor.interleaved = true;
      for (const auto& [begin, end] : {std::pair{std::uint64_t{0}, cut}, std::pair{cut, kRows}}) {
        if (begin == end) continue;
        ChunkedTensor::Chunk chunk{{{begin, 0}, {end - begin, kColumns}}, 0, 2 * begin * kColumns, {}};
        if (transposed) chunk.strides = {1, end - begin};
        tensor.chunks.push_back(chunk);
      }
      std::vector<ChunkedTensor> tensors{tensor};
      tensor.interleaved = false;
      const auto plain = elements(chunked_map({{"f"}}, {tensor}, "d"), 0);
      deinterleave(tensors, kHeadDim, "d");
      const TensorMap map = chunked_map({{"f"}}, tensors, "d");
      CHECK_NOTHROW(validate_tiling(map));
      const auto found = elements(map, 0);
      for (std::uint64_t head = 0; head < kHeads; ++head)
        for (std::uint64_t i = 0; i < kHeadDim / 2; ++i)
          for (std::uint64_t j = 0; j < 2; ++j)
            for (std::uint64_t column = 0; column < kColumns; ++column)
              CHECK(found[(head * kHeadDim + j * kHeadDim / 2 + i) * kColumns + column] ==
                    plain[(head * kHeadDim + 2 * i + j) * kColumns + column]);
    }
}

TEST_CASE("Rows that are no pairs, or no whole heads, are refused") {
  const auto refused = [](const ChunkedTensor& tensor, std::uint64_t head_dim, ErrorKind kind) {
    std::vector<ChunkedTensor> tensors{tensor};
    check_refused([&] { deinterleave(tensors, head_dim, "d/.metadata"); },
                  {.kind = kind, .path = "d/.metadata", .tensor = "entry"});
  };
  ChunkedTensor tensor = matrix(12, 2);
  tensor.interleaved = true;
  refused(tensor, 0, ErrorKind::kUnsupported);
  refused(tensor, 3, ErrorKind::kUnsupported);
  refused(tensor, 8, ErrorKind::kBadInput);
  tensor.shape = {};
  refused(tensor, 2, ErrorKind::kBadInput);
}

TEST_CASE("Interleaved rows of another shape than the model's are refused before heads are made of them") {
  Model model;
  model.parameters.resize(2);
  model.parameters[0].name = "other";
  model.parameters[1].name = "w";
  model.parameters[1].shape = {12, 2};
  ChunkedTensor tensor = matrix(12, 2);
  tensor.interleaved = true;
  CHECK_NOTHROW(validate_interleaved({matrix(5, 1), tensor}, model, "d"));
  tensor.shape[0] = std::uint64_t{1} << 31;
  const auto refused = [&](const std::string& says) {
    check_refused([&] { validate_interleaved({tensor}, model, "d/.metadata"); },
                  {.path = "d/.metadata", .tensor = "entry", .says = says});
  };
  refused("has the shape [2147483648, 2], but the model has [12, 2]");
  tensor.name = "v";
  refused("but the model has no v");
}

TEST_CASE("Copies of a state are made for as many experts as a model can have") {
  ChunkedTensor step{"step", "experts.*.gate", DType::kF32, {}, {{{}}}};
  step.copies = 3;
  CHECK(unstacked({step}, "d").size() == 3);
  const auto refused = [&] {
    check_refused([&] { unstacked({step}, "d/.metadata"); },
                  {.kind = ErrorKind::kUnsupported, .tensor = "step", .says = "more than any model has"});
  };
  step.copies = std::uint64_t{1} << 40;
  refused();
  step.copies = kMaxParameters;
  step.chunks.resize(9);  // replicas
  refused();
}

TEST_CASE("A stack of experts is as many tensors, of chunks that cut it anywhere") {
  ChunkedTensor stack{"moe.w1", "experts.*.gate", DType::kU16, {3, 2, 4}, {}, true};
  // The first chunk has two experts, the second one in two parts of columns.
  stack.chunks = {{{{0, 0, 0}, {2, 2, 4}}, 0, 0}, {{{2, 0, 0}, {1, 2, 1}}, 0, 200}, {{{2, 0, 1}, {1, 2, 3}}, 0, 400}};
  const std::vector<ChunkedTensor> experts = unstacked({matrix(1, 1), stack}, "d");
  REQUIRE(experts.size() == 4);
  for (std::size_t e = 0; e < 3; ++e) CHECK(experts[1 + e].name == "experts." + std::to_string(e) + ".gate");
  const TensorMap map = chunked_map({{"f"}}, {experts.begin() + 1, experts.end()}, "d");
  std::vector<std::uint64_t> expected(8);
  for (std::uint64_t e = 0; e < 2; ++e) {
    std::iota(expected.begin(), expected.end(), 8 * e);
    CHECK(elements(map, static_cast<std::uint32_t>(e)) == expected);
  }
  CHECK(elements(map, 2) == std::vector<std::uint64_t>{100, 200, 201, 202, 101, 203, 204, 205});
  for (const Dims& shape : {Dims{}, Dims{0, 2}, Dims{3, 0}}) {
    stack.shape = shape;
    CHECK(error_of([&] { unstacked({stack}, "d"); }).tensor() == "moe.w1");
  }
  stack.shape = {std::uint64_t{1} << 40, 1};
  CHECK(error_of([&] { unstacked({stack}, "d"); }).kind() == ErrorKind::kUnsupported);
}

TEST_CASE("Stacks of experts whose chunks would become too many parts are refused before they do") {
  ChunkedTensor stack{"moe.w1", "experts.*.gate", DType::kU8, {kMaxParameters / 2, 17}, {}, true};
  for (std::uint64_t column = 0; column < 17; ++column)
    stack.chunks.push_back({{{0, column}, {kMaxParameters / 2, 1}}, 0, 0});
  const auto refused = [](const std::vector<ChunkedTensor>& tensors) {
    check_refused([&] { unstacked(tensors, "d/.metadata"); },
                  {.kind = ErrorKind::kUnsupported,
                   .path = "d/.metadata",
                   .tensor = "moe.w1",
                   .says = {"stacks 1048576 experts in 1", " chunks, more than 16777216 parts in all"}});
  };
  refused({stack});
  ChunkedTensor step{"step", "experts.*.gate", DType::kF32, {}, {{{}}}};
  step.copies = 1;
  stack.chunks.pop_back();
  refused({step, stack});  // all stacks together
}

}  // namespace
}  // namespace reshard::test
