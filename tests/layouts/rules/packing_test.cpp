#include "reshard/layouts/rules/packing.h"

#include <algorithm>
#include <map>

#include "support/catch.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/schemes.h"

namespace reshard::test {
namespace {

Dims index_of(std::uint64_t elem, const Dims& shape) {
  Dims index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; elem /= shape[d]) index[d] = elem % shape[d];
  return index;
}

/// An element of one of the tensors that an array contains.
using Element = std::pair<std::uint32_t, std::vector<std::uint64_t>>;
using Elements = std::map<std::uint64_t, Element>;  // by their offset in an array

/// A random entry whose arrays have up to five dims, and sizes of all its axes. `joined` has one size for each part.
struct Trial {
  std::string dims;  // of the scheme
  std::map<std::string, std::uint64_t> sizes;
  std::vector<std::uint64_t> joined;
  DimAxes entry_dims, parameter_dims;
  SchemeEntry entry;

  explicit Trial(Random& random) {
    const bool joins = random() % 2 == 0;
    std::vector<std::string> axes{"a", "b", "c"};  // of a parameter, which has up to two dims
    axes.resize(pick(random, 1, 3));
    for (const std::string& axis : axes) sizes[axis] = pick(random, 1, 4);
    parameter_dims = grouped(random, axes);
    for (std::vector<std::string> dim : parameter_dims) {
      std::shuffle(dim.begin(), dim.end(), random);
      const DimAxes own = grouped(random, dim);
      entry_dims.insert(entry_dims.begin() + static_cast<std::ptrdiff_t>(random() % (entry_dims.size() + 1)),
                        own.begin(), own.end());
    }
    for (const char* number : {"layer", "expert"})
      if (random() % 3 == 0) {
        sizes[number] = pick(random, 1, 3);
        entry_dims.insert(entry_dims.begin() + static_cast<std::ptrdiff_t>(random() % (entry_dims.size() + 1)),
                          {number});
      }
    std::string names = R"("p.*.w")";
    if (joins) {
      for (std::uint64_t part = 0, parts = pick(random, 1, 3); part < parts; ++part)
        joined.push_back(pick(random, 1, 4));
      sizes["a"] = 0;
      for (const std::uint64_t size : joined) sizes["a"] += size;
      names = "";
      for (std::size_t part = 0; part < joined.size(); ++part) names += (part > 0 ? ", " : "") + stars_text(part);
      names = "[" + names + "]";
    } else {
      names = stars_text(0);
    }
    dims = text(parameter_dims, "") + " -> " + text(entry_dims, joins ? "a" : "");
    std::string given;
    for (const auto& [axis, size] : sizes)
      if (axis.size() == 1 && !(joins && axis == "a"))  // of a dim with one axis it follows, too
        given += (given.empty() ? "" : ", ") + ("\"" + axis + "\": ") + std::to_string(size);
    entry = scheme_entry(R"("entry": "w", "parameters": )" + names + R"(, "dims": ")" + dims + R"(", "sizes": {)" +
                         given + "}");
  }

  std::string stars_text(std::size_t part) const {
    std::string name = "\"p" + std::to_string(part);
    for (const char* number : {"layer", "expert"})
      if (sizes.count(number) > 0) name += ".*";
    return name + "\"";
  }

  static DimAxes grouped(Random& random, const std::vector<std::string>& axes) {
    DimAxes dims;
    for (const std::string& axis : axes) {
      if (dims.empty() || random() % 2 == 0) dims.emplace_back();
      dims.back().push_back(axis);
    }
    return dims;
  }

  static std::string text(const DimAxes& dims, const std::string& marked) {
    std::string text;
    for (const auto& axes : dims) {
      text += text.empty() ? "" : " ";
      if (axes.size() > 1) text += "(";
      for (std::size_t a = 0; a < axes.size(); ++a)
        text += std::string(a > 0 ? " " : "") + (axes[a] == marked ? "+" : "") + axes[a];
      if (axes.size() > 1) text += ")";
    }
    return text;
  }

  std::uint64_t size(const std::string& axis, std::size_t part) const {
    return axis == "a" && !joined.empty() ? joined[part] : sizes.at(axis);
  }

  Dims shape_of_part(std::size_t part) const {
    Dims shape;
    for (const auto& axes : parameter_dims) {
      shape.push_back(1);
      for (const std::string& axis : axes) shape.back() *= size(axis, part);
    }
    return shape;
  }

  /// The oracle: what the array has at `index`.
  Element element_at(const Dims& index) const {
    std::map<std::string, std::uint64_t> at;
    for (std::size_t d = 0; d < entry_dims.size(); ++d) {
      std::uint64_t rest = index[d];
      for (std::size_t a = entry_dims[d].size(); a-- > 0; rest /= sizes.at(entry_dims[d][a]))
        at[entry_dims[d][a]] = rest % sizes.at(entry_dims[d][a]);
    }
    std::size_t part = 0;
    while (!joined.empty() && at["a"] >= joined[part]) at["a"] -= joined[part++];
    std::uint64_t tensor = 0;
    for (const char* number : {"layer", "expert"})
      if (sizes.count(number) > 0) tensor = tensor * sizes.at(number) + at[number];
    tensor = tensor * std::max<std::size_t>(1, joined.size()) + part;
    Element element{static_cast<std::uint32_t>(tensor), {}};
    for (const auto& axes : parameter_dims) {
      element.second.push_back(0);
      for (const std::string& axis : axes) element.second.back() = element.second.back() * size(axis, part) + at[axis];
    }
    return element;
  }
};

/// The elements of a region, by their offset in an array whose elements a view has at `strides`.
void collect(const Region& region, const PlacedView& placed, Elements& found) {
  for (std::uint64_t i = 0; i < num_elems(region.box.size).value(); ++i) {
    const Dims index = index_of(i, region.box.size);
    Element element{region.tensor, {}};
    for (std::size_t d = 0; d < index.size(); ++d) element.second.push_back(region.box.begin[d] + index[d]);
    CHECK(found.emplace(placed.offset + placed.view.offset(index), element).second);
  }
}

/// The same elements, by the boxes of one view.
Elements in_boxes(const Box& box, const std::vector<Region>& regions) {
  const BoxedRegions boxes = as_boxes(box.size, regions);
  CHECK(num_elems(boxes.view.shape) == volume(box));
  Elements found;
  for (const Region& region : boxes.regions) {
    CHECK(contains(boxes.view.shape, {region.begin, region.box.size}));
    collect(region, {boxes.view.offset(region.begin), {region.box.size, boxes.view.strides}}, found);
  }
  return found;
}

Box random_box(Random& random, const Dims& shape) {
  Box box;
  for (const std::uint64_t size : shape) {
    box.begin.push_back(pick(random, 0, size - 1));
    box.size.push_back(pick(random, 1, size - box.begin.back()));
  }
  return box;
}

TEST_CASE("Any box of an entry is cut into the parts of tensors that its scheme says are there") {
  for (const std::uint64_t seed : seeds(1000)) {
    Random random(seed);
    const Trial trial(random);
    CAPTURE(seed, trial.dims);
    std::vector<Dims> parts;
    for (std::size_t p = 0; p < trial.entry.parameters.size(); ++p) parts.push_back(trial.shape_of_part(p));
    Dims numbers;
    for (const char* number : {"layer", "expert"})
      if (trial.sizes.count(number) > 0) numbers.push_back(trial.sizes.at(number));
    const PackedArray array = pack(trial.entry, parts, numbers, {});
    CHECK(numbers_of(trial.entry, array.shape) == numbers);
    const Box box = random_box(random, array.shape);
    Elements expected, found;
    for (std::uint64_t i = 0; i < volume(box); ++i) {
      Dims index = index_of(i, box.size);
      for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.begin[d];
      expected.emplace(i, trial.element_at(index));
    }
    const std::vector<Region> regions = array.packing.regions_in(box);
    for (const Region& region : regions) collect(region, view_of(region, c_strides(box.size)), found);
    CHECK(found == expected);
    const std::uint64_t count = array.packing.count_in(box);
    CHECK(count >= regions.size());
    CHECK(count <= num_elems(array.shape).value() * 81);  // three axes, of which each may have two indices too many
    if (!array.packing.has_boxes()) continue;
    CHECK(in_boxes(box, regions) == expected);
  }
}

/// What schemes say of the entries that torchtitan, Transformers and Megatron have.
const char* const kEntries[] = {
    R"("entry": "w1", "parameters": "experts.*.w", "dims": "row in -> expert row in")",
    R"("entry": "gate_up", "parameters": ["experts.*.gate", "experts.*.up"], "dims": "row in -> expert +row in")",
    R"("entry": "wq", "parameters": "q", "dims": "(head half pair) in -> (head pair half) in",
       "sizes": {"half": 2, "pair": "head_dim / 2"})",
    R"("entry": "qkv", "parameters": ["layers.*.q", "layers.*.k", "layers.*.v"],
       "dims": "(group row) in -> layer (group +row) in", "sizes": {"group": "num_key_value_heads"})",
    R"("entry": "fc1", "parameters": ["layers.*.experts.*.gate", "layers.*.experts.*.up"],
       "dims": "row in -> layer expert +row in")",
    R"("entry": "q", "parameters": "layers.*.q", "dims": "(head half pair) in -> layer (head pair half) in",
       "sizes": {"half": 2, "pair": "head_dim / 2"})"};

TEST_CASE("What a rank has of a packed entry is boxes of one view") {
  Model model;
  model.kv_heads = 3;
  model.head_dim = 4;
  for (const std::uint64_t seed : seeds(200)) {
    Random random(seed);
    const std::size_t which = random() % std::size(kEntries);
    CAPTURE(seed, kEntries[which]);
    const SchemeEntry entry = scheme_entry(kEntries[which]);
    std::vector<Dims> parts(entry.parameters.size(), Dims{model.kv_heads * model.head_dim, pick(random, 1, 3)});
    if (parts.size() == 3) parts.front()[0] *= 2;
    Dims numbers;
    for ([[maybe_unused]] const std::size_t dim : entry.numbered_dims()) numbers.push_back(pick(random, 1, 3));
    const PackedArray array = pack(entry, parts, numbers, model);
    CHECK(array.packing.has_boxes());
    const Box box = random_box(random, array.shape);
    const std::vector<Region> regions = array.packing.regions_in(box);
    Elements expected;
    for (const Region& region : regions) collect(region, view_of(region, c_strides(box.size)), expected);
    CHECK(expected.size() == volume(box));
    CHECK(in_boxes(box, regions) == expected);
  }
}

TEST_CASE("Megatron's query, key and value heads are by group, in layers one behind the other") {
  Model model;
  model.kv_heads = 3;
  // Two layers of three groups, each of two query heads, a key and a value head, of two rows.
  const PackedArray array = pack(scheme_entry(kEntries[3]), {{12, 3}, {6, 3}, {6, 3}}, {2}, model);
  CHECK(array.shape == Dims{2, 24, 3});
  Elements found;
  for (const Region& region : array.packing.regions_in(whole(array.shape)))
    collect(region, view_of(region, c_strides(array.shape)), found);
  const auto at = [&](const Dims& index) { return found.at(reshard::View::of(array.shape).offset(index)); };
  CHECK(at({0, 0, 0}) == Element{0, {0, 0}});
  CHECK(at({0, 8, 1}) == Element{0, {4, 1}});
  CHECK(at({1, 12, 2}) == Element{4, {2, 2}});
  CHECK(at({1, 10, 2}) == Element{3, {6, 2}});
  CHECK(at({0, 23, 0}) == Element{2, {5, 0}});
}

TEST_CASE("Pairs of rows become one row each, and where they cannot, each row is a region") {
  Model model;
  model.head_dim = 4;
  const PackedArray array = pack(scheme_entry(kEntries[2]), {{8, 3}}, {}, model);
  const auto boxes = [&](std::uint64_t begin, std::uint64_t rows) {
    const Box box{{begin, 0}, {rows, 3}};
    return as_boxes(box.size, array.packing.regions_in(box));
  };
  CHECK(boxes(0, 8).view == reshard::View::of({4, 6}));
  CHECK(boxes(0, 8).regions.size() == 4);
  CHECK(boxes(1, 6).view == reshard::View::of({3, 6}));
  CHECK(boxes(0, 7).view == reshard::View::of({7, 3}));
  CHECK(boxes(0, 7).regions.size() == 7);
}

TEST_CASE("Dims in another order than the tensor's are no boxes") {
  const auto has_boxes = [](const std::string& keys, const Dims& numbers) {
    return pack(scheme_entry(R"("entry": "w", )" + keys), {{2, 4}}, numbers, {}).packing.has_boxes();
  };
  CHECK(has_boxes(R"("parameters": "w.*", "dims": "r i -> layer r i")", {3}));
  CHECK_FALSE(has_boxes(R"("parameters": "w.*", "dims": "r i -> r layer i")", {3}));
  CHECK_FALSE(has_boxes(R"("parameters": "w", "dims": "r i -> i r")", {}));
  CHECK_FALSE(has_boxes(R"j("parameters": "w", "dims": "r (i j) -> r (j i)", "sizes": {"i": 2})j", {}));
}

TEST_CASE("Shapes that a scheme does not have are refused, and say which it has") {
  Model model;
  model.head_dim = 4;
  const SchemeEntry heads = scheme_entry(kEntries[2]), stack = scheme_entry(kEntries[0]);
  const auto refused = [](const auto& call, ErrorKind kind, const std::string& says) {
    check_refused(call, {.kind = kind, .says = says});
  };
  refused(
      [&] {
        pack(heads, {{6, 3}}, {}, model);
      },
      ErrorKind::kBadInput,
      "has the shape [6, 3], expected \"(head half pair) in\" with half = 2, pair = 2 (scheme.json: line 0)");
  refused([&] { pack(heads, {{8}}, {}, model); }, ErrorKind::kBadInput, "has the shape [8]");
  model.head_dim = 5;
  refused(
      [&] {
        pack(heads, {{10, 3}}, {}, model);
      },
      ErrorKind::kUnsupported,
      R"(has an axis "pair" without a valid size in the model: "head_dim / 2" cannot be computed: 5 / 2 is not a whole)");
  for (const Dims& shape : {Dims{}, Dims{0, 2, 2}, Dims{3, 2}})
    refused([&] { numbers_of(stack, shape); }, ErrorKind::kBadInput, "expected \"expert row in\"");
  CHECK(unpack_single(heads, {8, 3}) == std::nullopt);
  CHECK(unpack_single(scheme_entry(kEntries[1]), {2, 8, 3}) == std::nullopt);
  CHECK(unpack_single(stack, {2, 8, 3})->parts == std::vector<Dims>{{8, 3}});
}

}  // namespace
}  // namespace reshard::test
