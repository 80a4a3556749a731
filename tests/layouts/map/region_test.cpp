#include "reshard/layouts/map/region.h"

#include <map>

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

Dims index_of(std::uint64_t elem, const Dims& shape) {
  Dims index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; elem /= shape[d]) index[d] = elem % shape[d];
  return index;
}

/// An element of one of the tensors that an array holds.
using Element = std::pair<std::uint32_t, std::vector<std::uint64_t>>;

/// The oracle: what the array has at `index`.
Element element_at(const Packing& packing, const Dims& index) {
  std::vector<std::uint64_t> at(index.begin(), index.end());
  if (packing.is_stack) return {static_cast<std::uint32_t>(at.front()), {at.begin() + 1, at.end()}};
  if (packing.head_dim == 0) return {0, at};
  const std::uint64_t head = at[0] / packing.head_dim * packing.head_dim, row = at[0] - head;
  at[0] = head + row % 2 * (packing.head_dim / 2) + row / 2;
  return {0, at};
}

/// The elements of a region, by their offset in an array whose elements a view has at `strides`.
void collect(const Region& region, const PlacedView& placed, std::map<std::uint64_t, Element>& found) {
  for (std::uint64_t i = 0; i < num_elems(region.box.size).value(); ++i) {
    const Dims index = index_of(i, region.box.size);
    Element element{region.tensor, {}};
    for (std::size_t d = 0; d < index.size(); ++d) element.second.push_back(region.box.begin[d] + index[d]);
    CHECK(found.emplace(placed.offset + placed.view.offset(index), element).second);
  }
}

/// What the array has at `index`, by the regions of all of it.
Element held_at(const std::vector<Region>& regions, const Dims& shape, const Dims& index) {
  std::map<std::uint64_t, Element> found;
  for (const Region& region : regions) collect(region, view_of(region, c_strides(shape)), found);
  return found.at(reshard::View::of(shape).offset(index));
}

TEST_CASE("Any box of an array that holds tensors is cut into regions, and these are boxes of one view") {
  for (const std::uint64_t seed : seeds(400)) {
    CAPTURE(seed);
    Random random(seed);
    Packing packing;
    Dims shape{pick(random, 1, 5), pick(random, 1, 4)};
    switch (random() % 3) {
      case 0: packing.is_stack = true; break;
      case 1:
        packing.head_dim = 2 * pick(random, 1, 3);
        shape[0] *= packing.head_dim;
        break;
      default: break;
    }
    if (random() % 2 == 0) shape.push_back(pick(random, 1, 3));
    if (packing.head_dim > 0 && random() % 4 == 0) shape = {shape[0]};  // a bias
    Box box;
    for (const std::uint64_t size : shape) {
      box.begin.push_back(pick(random, 0, size - 1));
      box.size.push_back(pick(random, 1, size - box.begin.back()));
    }
    std::map<std::uint64_t, Element> expected, cut, boxed;
    for (std::uint64_t i = 0; i < volume(box); ++i) {
      Dims index = index_of(i, box.size);
      for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.begin[d];
      expected.emplace(i, element_at(packing, index));
    }
    const std::vector<Region> regions = packing.regions_in(shape, box);
    for (const Region& region : regions) collect(region, view_of(region, c_strides(box.size)), cut);
    CHECK(cut == expected);
    const BoxedRegions boxes = as_boxes(box.size, regions);
    CHECK(num_elems(boxes.view.shape) == volume(box));
    for (const Region& region : boxes.regions) {
      CHECK(contains(boxes.view.shape, {region.begin, region.box.size}));
      collect(region, {boxes.view.offset(region.begin), {region.box.size, boxes.view.strides}}, boxed);
    }
    CHECK(boxed == expected);
  }
}

TEST_CASE("Layers one behind the other, with query, key and value heads by group, are regions too") {
  // Megatron's linear_qkv of two layers: three groups of two query heads, a key and a value head, of two rows each.
  const std::uint64_t layers = 2, groups = 3, queries = 2, head_dim = 2, columns = 3;
  const std::uint64_t rows = (queries + 2) * head_dim;  // of a group
  const Dims shape{layers, groups * rows, columns};
  std::vector<Region> all;
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (std::uint64_t group = 0; group < groups; ++group) {
      std::uint64_t row = group * rows;
      for (const std::uint32_t linear : {0, 1, 2}) {
        const std::uint64_t size = (linear == 0 ? queries : 1) * head_dim;
        all.push_back({3 * layer + linear, {{group * size, 0}, {size, columns}}, {layer, row, 0}, {1, 2}, {1, 1}});
        row += size;
      }
    }
  // What a tensor-parallel rank has of it may begin and end inside a group.
  for (const Box& box : {Box{{0, 0, 0}, shape}, Box{{0, 5, 0}, {2, 11, 3}}, Box{{1, 8, 1}, {1, 8, 2}}}) {
    std::map<std::uint64_t, Element> expected, boxed;
    std::vector<Region> regions;
    for (const Region& region : all) {
      const auto part = part_in(region, box);
      if (!part) continue;
      regions.push_back(*part);
      collect(*part, view_of(*part, c_strides(box.size)), expected);
    }
    CHECK(expected.size() == volume(box));
    const BoxedRegions boxes = as_boxes(box.size, regions);
    CHECK(boxes.view.shape == Dims{box.size[0] * box.size[1], box.size[2]});
    for (const Region& region : boxes.regions)
      collect(region, {boxes.view.offset(region.begin), {region.box.size, boxes.view.strides}}, boxed);
    CHECK(boxed == expected);
  }
  CHECK(held_at(all, shape, {1, 10, 2}) == Element{3, {6, 2}});
  CHECK(held_at(all, shape, {1, 12, 2}) == Element{4, {2, 2}});
  CHECK(held_at(all, shape, {0, 23, 0}) == Element{2, {5, 0}});
}

TEST_CASE("Pairs of rows become one row each, and where they cannot, each row is a region") {
  const Packing packing{.head_dim = 4};
  const Dims shape{8, 3};
  const auto boxes = [&](std::uint64_t begin, std::uint64_t rows) {
    const Box box{{begin, 0}, {rows, 3}};
    return as_boxes(box.size, packing.regions_in(shape, box));
  };
  CHECK(boxes(0, 8).view == reshard::View::of({4, 6}));
  CHECK(boxes(0, 8).regions.size() == 4);
  CHECK(boxes(1, 6).view == reshard::View::of({3, 6}));
  CHECK(boxes(0, 7).view == reshard::View::of({7, 3}));
  CHECK(boxes(0, 7).regions.size() == 7);
}

}  // namespace
}  // namespace reshard::test
