#include "reshard/layouts/core/unpack.h"

#include <numeric>

#include "reshard/layouts/map/chunked_map.h"
#include "support/refusals.h"
#include "support/schemes.h"

namespace reshard::test {
namespace {

/// The experts of a layer, one behind the other, and the rows of heads in pairs.
const SchemeEntry& stacked() {
  static const SchemeEntry kEntry = scheme_entry(R"("entry": "moe.w1", "parameters": "experts.*.gate",
                                                      "dims": "row in -> expert row in")");
  return kEntry;
}
const SchemeEntry& interleaved() {
  static const SchemeEntry kEntry =
      scheme_entry(R"("entry": "entry", "parameters": "w", "dims": "(head half pair) in -> (head pair half) in",
                      "sizes": {"half": 2, "pair": "head_dim / 2"})");
  return kEntry;
}

ChunkedTensor matrix(std::uint64_t rows, std::uint64_t columns) {
  return {"entry", "w", DType::kU16, {rows, columns}, {}};
}

/// A tensor as a file has it, and how it is packed; no rule: not at all.
struct Entry {
  Entry(ChunkedTensor plain) : tensor(std::move(plain)) {}
  Entry(ChunkedTensor array, const SchemeEntry& packed_by)
      : tensor(std::move(array)), rule(&packed_by), shape(tensor.shape) {}

  ChunkedTensor tensor;
  const SchemeEntry* rule = nullptr;
  Dims shape;  // of the parameters' entry
};

PackedEntries packed_in(const std::vector<Entry>& entries) {
  PackedEntries packed{"d/.metadata", {}};
  for (const Entry& entry : entries)
    if (entry.rule != nullptr)
      packed.by_name.emplace(entry.tensor.name,
                             PackedEntry{std::make_shared<const PackedNames>(*entry.rule, std::vector<std::string>()),
                                         entry.tensor.entry, entry.shape});
  return packed;
}

SourceMap map_of(const std::vector<Entry>& entries) {
  std::vector<ChunkedTensor> tensors;
  for (const Entry& entry : entries) tensors.push_back(entry.tensor);
  return chunked_map({{{"f"}}}, tensors, "d");
}

SourceMap unpacked(const std::vector<Entry>& entries, const Model* model = nullptr) {
  SourceMap map = map_of(entries);
  const Unpacked made = unpack(map, packed_in(entries), model);
  CHECK(made.kept.empty());
  return map;
}

Model model_of(std::uint64_t head_dim, const Dims& shape) {
  Model model;
  model.head_dim = head_dim;
  model.parameters.resize(2);
  model.parameters[0].name = "other";
  model.parameters[1].name = "w";
  model.parameters[1].shape = shape;
  return model;
}

/// The element numbers that the map puts at each place of `logical`, of files in which element i has the number i.
std::vector<std::uint64_t> elements(const SourceMap& map, std::uint32_t logical) {
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
      for (const auto& [begin, end] : {std::pair{std::uint64_t{0}, cut}, std::pair{cut, kRows}}) {
        if (begin == end) continue;
        ChunkedTensor::Chunk chunk{{{begin, 0}, {end - begin, kColumns}}, 0, 2 * begin * kColumns, {}};
        if (transposed) chunk.strides = {1, end - begin};
        tensor.chunks.push_back(chunk);
      }
      const auto plain = elements(map_of({tensor}), 0);
      const Model model = model_of(kHeadDim, tensor.shape);
      const SourceMap map = unpacked({{tensor, interleaved()}}, &model);
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

TEST_CASE("Rows that are no pairs, no whole heads, or not as many as the model's, are refused") {
  const auto refused = [](const Dims& shape, std::uint64_t head_dim, const Dims& of_model, ErrorKind kind,
                          const std::string& says) {
    const Model model = model_of(head_dim, of_model);
    ChunkedTensor tensor = matrix(0, 0);
    tensor.shape = shape;
    check_refused(
        [&] {
          unpacked({{tensor, interleaved()}}, &model);
        },
        {.kind = kind, .path = "d/.metadata", .tensor = "entry", .says = says});
  };
  refused({12, 2}, 0, {12, 2}, ErrorKind::kUnsupported, "head_dim / 2");
  refused({12, 2}, 3, {12, 2}, ErrorKind::kUnsupported, "3 / 2 is not a whole number");
  refused({12, 2}, 8, {12, 2}, ErrorKind::kBadInput, "has the shape [12, 2], expected \"(head half pair) in\"");
  refused({}, 2, {12, 2}, ErrorKind::kBadInput, "has the shape [], expected \"(head pair half) in\"");
  refused({std::uint64_t{1} << 31, 2}, 6, {12, 2}, ErrorKind::kBadInput,
          "has the shape [2147483648, 2], but the model has [12, 2]");
  Model other = model_of(6, {12, 2});
  other.parameters.pop_back();
  check_refused(
      [&] {
        unpacked({{matrix(12, 2), interleaved()}}, &other);
      },
      {.tensor = "entry", .says = "contains w, which the model does not have"});
}

TEST_CASE("Without a model, only entries whose order needs its numbers stay as they are") {
  const std::vector<Entry> entries = {{matrix(12, 2), interleaved()}, {matrix(1, 2)}};
  std::vector<Entry> renamed = entries;
  renamed[1].tensor.name = "other";
  SourceMap map = map_of(renamed);
  CHECK(unpack(map, packed_in(renamed), nullptr).kept == "entry");
  CHECK(map.logical[0].shape == Dims{12, 2});
  CHECK(map.logical[1].name == "other");
}

/// A scalar of a parameter in a stack of so many experts.
Entry step_of(std::uint64_t experts, std::size_t replicas) {
  Entry step({"step", "experts.*.gate.step", DType::kF32, {}, {}}, stacked());
  step.shape = {experts, 1, 1};
  step.tensor.chunks.resize(replicas);
  return step;
}

TEST_CASE("Copies of a state are made for as many experts as a model can have") {
  CHECK(unpacked({step_of(3, 1)}).logical.size() == 3);
  const auto refused = [](const Entry& step, const std::string& says) {
    check_refused([&] { unpacked({step}); },
                  {.kind = ErrorKind::kUnsupported, .path = "d/.metadata", .tensor = "step", .says = says});
  };
  refused(step_of(std::uint64_t{1} << 40, 1), "contains 1099511627776 tensors, more than any model has");
  refused(step_of(kMaxParameters / 8, 65), "become more than 16777216 pieces of tensors");
}

TEST_CASE("A stack of experts is as many tensors, of chunks that cut it anywhere") {
  Entry stack({"moe.w1", "experts.*.gate", DType::kU16, {3, 2, 4}, {}}, stacked());
  // The first chunk has two experts, the second one in two parts of columns.
  stack.tensor.chunks = {
      {{{0, 0, 0}, {2, 2, 4}}, 0, 0}, {{{2, 0, 0}, {1, 2, 1}}, 0, 200}, {{{2, 0, 1}, {1, 2, 3}}, 0, 400}};
  const SourceMap map = unpacked({matrix(1, 1), stack});
  REQUIRE(map.logical.size() == 4);
  for (std::size_t e = 0; e < 3; ++e) CHECK(map.logical[1 + e].name == "experts." + std::to_string(e) + ".gate");
  CHECK(packed_in({matrix(1, 1), stack}).tensors() ==
        std::vector<std::string>{"experts.0.gate", "experts.1.gate", "experts.2.gate"});
  std::vector<std::uint64_t> expected(8);
  for (std::uint64_t e = 0; e < 2; ++e) {
    std::iota(expected.begin(), expected.end(), 8 * e);
    CHECK(elements(map, static_cast<std::uint32_t>(1 + e)) == expected);
  }
  CHECK(elements(map, 3) == std::vector<std::uint64_t>{100, 200, 201, 202, 101, 203, 204, 205});
  for (const Dims& shape : {Dims{}, Dims{0, 2, 1}, Dims{3, 2}}) {
    stack.tensor.shape = stack.shape = shape;
    CHECK(error_of([&] { unpacked({stack}); }).tensor() == "moe.w1");
  }
  stack.tensor.shape = stack.shape = {std::uint64_t{1} << 40, 1, 1};
  CHECK(error_of([&] { unpacked({stack}); }).kind() == ErrorKind::kUnsupported);
}

TEST_CASE("What is known of an entry is known of the tensors in it") {
  const Entry stack({"moe.w1", "experts.*.gate", DType::kF32, {2, 1, 1}, {{{{0, 0, 0}, {2, 1, 1}}}}}, stacked());
  SourceMap map = map_of({stack, matrix(1, 1)});
  map.logical[*map.find_logical("experts.*.gate")].model_dtype = DType::kBF16;
  map.logical[*map.find_logical("w")].unconfirmed_hint = "look";
  unpack(map, packed_in({stack}), nullptr);
  REQUIRE(map.logical.size() == 3);
  for (const LogicalTensor& tensor : map.logical) {
    CHECK(tensor.model_dtype.has_value() == (tensor.name != "w"));
    CHECK(tensor.unconfirmed_hint.empty() == (tensor.name != "w"));
  }
}

TEST_CASE("A tensor that exists twice, by itself and in an entry, is refused with both") {
  const Entry stack({"moe.w1", "experts.*.gate", DType::kU16, {2, 1, 1}, {{{{0, 0, 0}, {2, 1, 1}}}}}, stacked());
  ChunkedTensor single = matrix(1, 1);
  single.name = "experts.1.gate";
  single.chunks = {{{{0, 0}, {1, 1}}}};
  for (const auto& entries : {std::vector<Entry>{stack, single}, std::vector<Entry>{single, stack}})
    check_refused([&] { unpacked(entries); },
                  {.path = "d/.metadata", .tensor = "experts.1.gate", .says = {"exists twice", "moe.w1", "entry"}});
}

TEST_CASE("Rows behind those of the parameters are padding where the scheme says that there may be some") {
  const SchemeEntry rule = scheme_entry(R"("entry": "embedding", "parameters": "w", "dims": "row in -> +row in",
                                             "padded": true)");
  Entry entry(matrix(6, 2), rule);
  entry.tensor.chunks = {{{{0, 0}, {3, 2}}, 0, 0}, {{{3, 0}, {2, 2}}, 0, 100}, {{{5, 0}, {1, 2}}, 0, 200}};
  Model model = model_of(0, {4, 2});
  SourceMap map = map_of({entry});
  CHECK(unpack(map, packed_in({entry}), &model).notes.texts() ==
        std::vector<std::string>{"removed the padding of entry, from [4, 2] to [6, 2]"});
  CHECK(map.logical[0].shape == Dims{4, 2});
  CHECK(elements(map, 0) == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 50, 51});
  CHECK_NOTHROW(validate_tiling(map));
  model.parameters[1].shape = {7, 2};
  check_refused([&] { unpacked({entry}, &model); },
                {.says = "has the shape [6, 2], but the model has", .hint = "the scheme's entry lacks \"padded\""});
}

TEST_CASE("Where a tensor would do not begin at a byte boundary, its entry is refused") {
  Entry stack({"moe.w1", "experts.*.gate", DType::kF4, {2, 1, 4}, {}}, stacked());
  stack.tensor.chunks = {{{{0, 0, 0}, {2, 1, 4}}, 0, 0}};
  const SourceMap map = unpacked({stack});
  CHECK(map.stored[map.pieces[1][0].stored].offset_bytes == 2);
  stack.tensor.shape = stack.shape = {2, 1, 3};
  stack.tensor.chunks = {{{{0, 0, 0}, {2, 1, 3}}, 0, 0}};
  check_refused([&] { unpacked({stack}); },
                {.kind = ErrorKind::kUnsupported, .tensor = "moe.w1", .says = "do not begin at a byte boundary"});
}

TEST_CASE("Stacks of experts whose chunks would become too many parts are refused before they do") {
  Entry stack({"moe.w1", "experts.*.gate", DType::kU8, {kMaxParameters / 16, 1, 129}, {}}, stacked());
  for (std::uint64_t column = 0; column < 129; ++column)
    stack.tensor.chunks.push_back({{{0, 0, column}, {kMaxParameters / 16, 1, 1}}, 0, 0});
  const auto refused = [](const std::vector<Entry>& entries) {
    check_refused([&] { unpacked(entries); }, {.kind = ErrorKind::kUnsupported,
                                               .path = "d/.metadata",
                                               .tensor = "moe.w1",
                                               .says = "become more than 16777216 pieces of tensors"});
  };
  refused({stack});
  stack.tensor.chunks.pop_back();
  refused({step_of(1, 1), stack});  // all of them together
}

}  // namespace
}  // namespace reshard::test
