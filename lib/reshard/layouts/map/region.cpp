#include "reshard/layouts/map/region.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "reshard/base/checked.h"

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

namespace {

/// Saturates at UINT64_MAX.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  return checked_mul(a, b).value_or(UINT64_MAX);
}

/// Returns the range of indices along `axis` at which an `extent` that starts at `begin` may overlap `box`.
std::pair<std::uint64_t, std::uint64_t> indices_in(const Packing::Axis& axis, std::uint64_t begin, std::uint64_t extent,
                                                   const Box& box) {
  const std::uint64_t from = box.begin[axis.dim], to = from + box.size[axis.dim];
  const auto before = [&](std::uint64_t place) {  // number of indices before this position
    return place <= begin ? 0 : std::min(axis.size, (place - begin - 1) / axis.step + 1);
  };
  return {from < extent ? 0 : before(from - extent + 1), before(to)};
}

/// Builds the regions of one part of a packing: an axis that is not the last of its dim becomes one region per index.
class PartCutter {
 public:
  PartCutter(const Packing::Part& part, const Box& box) : box_(box) {
    const std::size_t dims = part.dims.size();
    region_.box = Box{Dims(dims), Dims(dims)};
    region_.begin = part.begin;
    for (std::size_t d = 0; d < dims; ++d) {
      const std::vector<Packing::Axis>& axes = part.dims[d];
      region_.box.size[d] = axes.back().size;
      region_.axes.push_back(axes.back().dim);
      region_.steps.push_back(axes.back().step);
      std::uint64_t elems = axes.back().size;  // distance along dim d from one index of an axis to the next
      const auto first = static_cast<std::ptrdiff_t>(outer_.size());
      for (std::size_t a = axes.size() - 1; a-- > 0; elems *= axes[a].size)
        outer_.insert(outer_.begin() + first, {d, elems, axes[a]});
    }
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      Outer& one = outer_[i];
      for (std::size_t later = i + 1; later < outer_.size(); ++later) one.add_extent(outer_[later].axis);
      for (const std::vector<Packing::Axis>& axes : part.dims) one.add_extent(axes.back());
    }
  }

  /// \param begin  index in the array of tensor `number`'s first element.
  void add(std::uint32_t number, Dims begin, std::vector<Region>& regions) {
    region_.tensor = number;
    region_.begin = std::move(begin);
    add_from(0, regions);
  }

  /// Upper bound for the number of regions of a tensor in the box, wherever the tensor begins.
  std::uint64_t count() const {
    std::uint64_t count = 1;
    for (const Outer& one : outer_)
      count = product(count, std::min(one.axis.size, (box_.size[one.axis.dim] + one.extent) / one.axis.step + 2));
    return count;
  }

 private:
  struct Outer {
    std::size_t dim = 0;      // dim of the tensor
    std::uint64_t elems = 0;  // distance along that dim from one index to the next
    Packing::Axis axis;
    std::uint64_t extent = 1;  // number of positions in dim axis.dim of the array that the later axes span

    void add_extent(const Packing::Axis& other) {
      if (other.dim == axis.dim && other.size > 0) extent += (other.size - 1) * other.step;
    }
  };

  void add_from(std::size_t i, std::vector<Region>& regions) {
    if (i == outer_.size()) {
      if (auto part = part_in(region_, box_)) regions.push_back(*std::move(part));
      return;
    }
    const Outer& one = outer_[i];
    const std::uint64_t place = region_.begin[one.axis.dim], row = region_.box.begin[one.dim];
    const auto [first, last] = indices_in(one.axis, place, one.extent, box_);
    for (std::uint64_t index = first; index < last; ++index) {
      region_.begin[one.axis.dim] = place + index * one.axis.step;
      region_.box.begin[one.dim] = row + index * one.elems;
      add_from(i + 1, regions);
    }
    region_.begin[one.axis.dim] = place;
    region_.box.begin[one.dim] = row;
  }

  const Box& box_;
  Region region_;
  std::vector<Outer> outer_;  // outermost first
};

}  // namespace

std::uint64_t Packing::count_in(const Box& box) const {
  std::uint64_t tensors = 1, regions = 0;
  for (const Axis& axis : numbers) tensors = product(tensors, box.size[axis.dim]);
  for (const Part& part : parts) regions = checked_add(regions, PartCutter(part, box).count()).value_or(UINT64_MAX);
  return product(tensors, regions);
}

std::vector<Region> Packing::regions_in(const Box& box) const {
  assert(!is_plain());
  const std::size_t dims = box.size.size();
  std::vector<PartCutter> cutters;
  for (const Part& part : parts) cutters.emplace_back(part, box);
  std::vector<Region> regions;
  // In the order of tensor numbers: the index along the first axis changes last.
  const auto add = [&](const auto& self, std::size_t n, std::uint64_t number, Dims offset) -> void {
    if (n == numbers.size()) {
      for (std::size_t p = 0; p < parts.size(); ++p) {
        Dims begin = parts[p].begin;
        for (std::size_t d = 0; d < dims; ++d) begin[d] += offset[d];
        cutters[p].add(static_cast<std::uint32_t>(number * parts.size() + p), std::move(begin), regions);
      }
      return;
    }
    const Axis& axis = numbers[n];
    const auto [first, last] = indices_in(axis, 0, 1, box);
    for (std::uint64_t index = first; index < last; ++index) {
      offset[axis.dim] = index * axis.step;
      self(self, n + 1, number * axis.size + index, offset);
    }
  };
  add(add, 0, 0, Dims(dims));
  return regions;
}

bool Packing::is_identity() const {
  if (!numbers.empty() || parts.size() != 1 || parts.front().dims.size() != parts.front().begin.size())
    return is_plain();
  for (std::size_t d = 0; d < parts.front().dims.size(); ++d) {
    const std::vector<Axis>& axes = parts.front().dims[d];
    if (axes.size() != 1 || axes.front().dim != d || axes.front().step != 1) return false;
  }
  return true;
}

bool Packing::has_boxes() const {
  return std::all_of(parts.begin(), parts.end(), [](const Part& part) {
    const std::size_t dims = part.dims.size(), before = part.begin.size() - dims;
    if (dims == 0 || dims > part.begin.size()) return false;
    if (dims == 1 && part.dims[0].back().step != 1) return false;  // would need one box per element
    for (std::size_t d = 0; d < dims; ++d) {
      const Axis& last = part.dims[d].back();
      if (last.dim != before + d || (d > 0 && (part.dims[d].size() > 1 || last.step != 1))) return false;
    }
    return true;
  });
}

BoxedRegions as_boxes(const Dims& shape, std::vector<Region> regions) {
  BoxedRegions boxed{View::of(shape), {}};
  if (regions.empty()) return boxed;
  const std::size_t dims = regions.front().box.size.size();
  assert(dims > 0 && dims <= shape.size());
  for (; boxed.view.shape.size() > dims; boxed.view = *boxed.view.merged(0))
    for (Region& region : regions) {
      const std::uint64_t before = region.begin[0] * boxed.view.shape[1];
      region.begin = region.begin.from(1);
      region.begin[0] += before;
    }
  const std::uint64_t step = regions.front().steps[0];
  // Rows at every `step`-th position are parts of rows that are `step` times as long.
  if (step > 1 && dims > 1 && boxed.view.shape[0] % step == 0) {
    Dims longer = boxed.view.shape;
    for (Region& region : regions) {
      region.begin[1] += region.begin[0] % step * longer[1];
      region.begin[0] /= step;
      region.steps[0] = 1;
    }
    longer[0] /= step;
    longer[1] *= step;
    boxed.view = View::of(std::move(longer));
  }
  for (Region& region : regions) {
    region.axes = counted(dims);
    const std::uint64_t rows = region.steps[0] == 1 ? 1 : region.box.size[0];  // number of rows that become regions
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
