#include "reshard/layouts/map/region.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace reshard {
namespace {

Dims counted(std::size_t count, std::uint64_t first = 0) {
  Dims dims(count);
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

}  // namespace

std::optional<Region> part_in(const Region& region, const Box& box) {
  Region part = region;
  for (std::size_t a = 0; a < box.begin.size(); ++a) {
    const std::uint64_t begin = box.begin[a], end = begin + box.size[a];
    const auto axis = std::find(region.axes.begin(), region.axes.end(), a);
    if (axis == region.axes.end()) {
      if (region.begin[a] < begin || region.begin[a] >= end) return std::nullopt;
      part.begin[a] -= begin;
      continue;
    }
    const auto d = static_cast<std::size_t>(axis - region.axes.begin());
    const auto indices_before = [&](std::uint64_t place) {
      if (place <= region.begin[a]) return std::uint64_t{0};
      return std::min(region.box.size[d], (place - region.begin[a] - 1) / region.steps[d] + 1);
    };
    const std::uint64_t first = indices_before(begin), last = indices_before(end);
    if (first == last && region.box.size[d] != 0) return std::nullopt;
    part.box.begin[d] += first;
    part.box.size[d] = last - first;
    part.begin[a] += first * region.steps[d] - begin;
  }
  return part;
}

PlacedView view_of(const Region& region, const Dims& strides) {
  PlacedView placed{View{{}, strides}.offset(region.begin), {region.box.size, {}}};
  for (std::size_t d = 0; d < region.axes.size(); ++d)
    placed.view.strides.push_back(strides[region.axes[d]] * region.steps[d]);
  return placed;
}

std::vector<Region> Packing::regions_in(const Dims& shape, const Box& box) const {
  assert(!is_stack || head_dim == 0);
  std::vector<Region> regions;
  const auto add = [&](const Region& region) {
    if (auto part = part_in(region, box)) regions.push_back(*std::move(part));
  };
  if (is_stack) {
    const Dims of_each = shape.from(1);
    Region region{0, whole(of_each), Dims(shape.size()), counted(of_each.size(), 1), Dims(of_each.size(), 1)};
    for (std::uint64_t i = box.begin[0]; i < box.begin[0] + box.size[0]; ++i) {
      region.tensor = static_cast<std::uint32_t>(i);
      region.begin[0] = i;
      add(region);
    }
    return regions;
  }
  Region region{0, whole(shape), Dims(shape.size()), counted(shape.size()), Dims(shape.size(), 1)};
  if (head_dim == 0) {
    add(region);
    return regions;
  }
  region.box.size[0] = head_dim / 2;
  region.steps[0] = 2;
  for (std::uint64_t head = box.begin[0] / head_dim * head_dim; head < box.begin[0] + box.size[0]; head += head_dim)
    for (const std::uint64_t half : {0, 1}) {
      region.box.begin[0] = head + half * (head_dim / 2);
      region.begin[0] = head + half;
      add(region);
    }
  return regions;
}

BoxedRegions as_boxes(const Dims& shape, std::vector<Region> regions) {
  BoxedRegions boxed{View::of(shape), {}};
  if (regions.empty()) return boxed;
  const std::size_t dims = regions.front().box.size.size();
  assert(dims > 0 && dims <= shape.size());
  const std::uint64_t step = regions.front().steps[0];
  // Rows of every second place are halves of rows that are twice as long.
  if (step > 1 && shape.size() > 1 && shape[0] % step == 0) {
    Dims longer = shape;
    longer[0] /= step;
    longer[1] *= step;
    boxed.view = View::of(std::move(longer));
    for (Region& region : regions) {
      region.begin[1] += region.begin[0] % step * shape[1];
      region.begin[0] /= step;
      region.steps[0] = 1;
    }
  }
  for (; boxed.view.shape.size() > dims; boxed.view = *boxed.view.merged(0))
    for (Region& region : regions) {
      const std::uint64_t before = region.begin[0] * boxed.view.shape[1];
      region.begin = region.begin.from(1);
      region.begin[0] += before;
    }
  for (Region& region : regions) {
    region.axes = counted(dims);
    const std::uint64_t rows = region.steps[0] == 1 ? 1 : region.box.size[0];  // that become regions
    const std::uint64_t row_step = std::exchange(region.steps[0], 1);
    if (row_step != 1) region.box.size[0] = 1;
    for (std::uint64_t row = 0; row < rows; ++row) {
      boxed.regions.push_back(region);
      ++region.box.begin[0];
      region.begin[0] += row_step;
    }
  }
  return boxed;
}

}  // namespace reshard
