#include "reshard/layouts/map/partition.h"

#include <algorithm>
#include <span>

#include "reshard/base/checked.h"

namespace reshard {
namespace {

using Part = PartitionRule::Part;

/// A whole logical tensor as one chunk.
const Placement& whole_placement() {
  static const Placement kWhole{1, std::nullopt, {{0}}};
  return kWhole;
}

const Placement& placement_along(const Part& part, std::size_t dim) {
  const auto found = std::find_if(part.placed.begin(), part.placed.end(),
                                  [&](const PartitionRule::PlacedDim& placed) { return placed.dim == dim; });
  return found == part.placed.end() ? whole_placement() : *found->placement;
}

bool is_on(const Part& part, std::uint32_t rank) {
  return std::none_of(part.placed.begin(), part.placed.end(),
                      [&](const PartitionRule::PlacedDim& placed) { return placed.placement->of(rank).empty(); });
}

using Parts = std::span<const Part>;

/// Returns the parts of each slice; all parts if there are no slices.
std::vector<Parts> slices_of(const PartitionRule& rule) {
  std::vector<Parts> slices;
  const Parts all = rule.parts;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin + 1;
    while (end < all.size() && all[end].slice == all[begin].slice) ++end;
    slices.push_back(all.subspan(begin, end - begin));
    begin = end;
  }
  return slices;
}

/// Whether the parts are concatenated.
bool is_stacked(const PartitionRule& rule, Parts parts) {
  return parts.size() > 1 && !rule.one_of_parts;
}

/// Whether the tensor has the dims that the placements divide.
bool has_dims(const PartitionRule& rule, const Dims& shape) {
  const bool is_sliced = !rule.parts.empty() && rule.parts.front().slice;
  if (is_stacked(rule, rule.parts) && rule.stack_dim >= shape.size()) return false;
  if (is_sliced && rule.slice_dim >= shape.size()) return false;
  return std::all_of(rule.parts.begin(), rule.parts.end(),
                     [&](const Part& part) { return part.placed.empty() || part.placed.back().dim < shape.size(); });
}

/// Returns the size of a chunk if the dim has `size` elements; std::nullopt if it is not divisible.
std::optional<std::uint64_t> unit_of(const Placement& placement, std::uint64_t size) {
  if (size % placement.units != 0) return std::nullopt;
  const std::uint64_t unit = size / placement.units;
  if (placement.unit_elems && *placement.unit_elems != unit) return std::nullopt;
  return unit;
}

/// The shape of a rank's share of one logical tensor.
std::optional<Dims> shape_on(const Part& part, std::uint32_t rank, Dims shape) {
  for (const auto& [dim, placement] : part.placed) {
    const auto unit = unit_of(*placement, shape[dim]);
    if (!unit) return std::nullopt;
    shape[dim] = *unit * placement->of(rank).size();
  }
  return shape;
}

/// A run of `count` consecutive chunks from number `first` on, or of padding.
struct Run {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool is_padding = false;
};

/// Visits the runs of a rank's chunks in stored order.
template <typename Visit>
void for_each_run(const Placement& placement, std::uint32_t rank, Visit&& visit) {
  const std::vector<std::uint32_t>& taken = placement.of(rank);
  for (std::size_t begin = 0; begin < taken.size();) {
    const bool is_padding = taken[begin] >= placement.units;
    std::size_t end = begin + 1;
    while (end < taken.size() && (is_padding ? taken[end] >= placement.units
                                             : taken[end] < placement.units && taken[end] == taken[end - 1] + 1))
      ++end;
    visit(Run{taken[begin], end - begin, is_padding});
    begin = end;
  }
}

/// Adds the pieces of a part on a rank. In `piece`, the first `placed` dims are already restricted to one run each; the
/// other dims are whole.
void add_pieces_of(const Part& part, std::uint32_t rank, const Dims& shape, std::size_t placed, PartPiece piece,
                   std::vector<PartPiece>& pieces) {
  if (placed == part.placed.size()) {
    if (piece.is_padding) piece.box.begin = piece.stored_begin;
    pieces.push_back(std::move(piece));
    return;
  }
  const std::uint32_t dim = part.placed[placed].dim;
  const Placement& placement = *part.placed[placed].placement;
  const std::uint64_t unit = shape[dim] / placement.units;
  for_each_run(placement, rank, [&](const Run& run) {
    PartPiece next = piece;
    next.is_padding = piece.is_padding || run.is_padding;
    next.box.begin[dim] = run.first * unit;
    next.box.size[dim] = run.count * unit;
    piece.stored_begin[dim] += run.count * unit;
    add_pieces_of(part, rank, shape, placed + 1, std::move(next), pieces);
  });
}

}  // namespace

namespace {

/// Returns the shape of a slice of the stored tensor, or of all of it.
/// \param shapes  of all logical tensors; those of `parts` begin at `first`.
std::optional<Dims> slice_shape(const PartitionRule& rule, Parts parts, std::uint32_t rank,
                                const std::vector<Dims>& shapes, std::size_t first) {
  std::optional<Dims> stored;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Dims& shape = shapes[first + i];
    if (shape.size() != shapes.front().size() || !has_dims(rule, shape)) return std::nullopt;
    auto own = shape_on(parts[i], rank, shape);
    if (!own) return std::nullopt;
    if (!stored) {
      stored = std::move(own);
      if (rule.one_of_parts) return stored;
      continue;
    }
    const std::uint64_t before = (*stored)[rule.stack_dim];
    const auto sum = checked_add(before, (*own)[rule.stack_dim]);
    if (!sum) return std::nullopt;
    (*stored)[rule.stack_dim] = (*own)[rule.stack_dim];
    if (*stored != *own) return std::nullopt;
    (*stored)[rule.stack_dim] = *sum;
  }
  return stored;
}

/// Adds the logical shapes of the parts of a slice of shape `stored`. Returns false if its size is not divisible.
bool add_logical_shapes(const PartitionRule& rule, Parts parts, std::uint32_t rank, const Dims& stored,
                        std::vector<Dims>& shapes) {
  const bool is_here = is_on(parts.front(), rank);
  const bool stacked = is_here && is_stacked(rule, parts);
  std::uint64_t taken_of_stack = 0;  // number of chunks along stack_dim, over all parts
  for (const Part& part : parts) taken_of_stack += placement_along(part, rule.stack_dim).of(rank).size();
  std::uint64_t accounted = 0;  // size along stack_dim of the previous parts
  for (const Part& part : parts) {
    Dims shape = stored;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      const bool is_shared = stacked && dim == rule.stack_dim;
      const Placement& placement = placement_along(part, dim);
      const std::uint64_t size = stored[dim];
      const std::uint64_t taken = placement.of(rank).size();
      const std::uint64_t units = is_shared ? taken_of_stack : taken;
      if (!placement.unit_elems && (units == 0 || size % units != 0)) return false;
      const std::uint64_t unit = placement.unit_elems ? *placement.unit_elems : size / units;
      if (unit == 0 && size != 0) return false;  // a logical tensor without elements next to one that has some
      const auto full = checked_mul(unit, placement.units);
      const auto own = checked_mul(unit, taken);
      const auto sum = own && is_shared ? checked_add(accounted, *own) : own;
      if (!full || !sum || (is_here && !is_shared && *own != size)) return false;
      if (is_shared) accounted = *sum;
      shape[dim] = *full;
    }
    shapes.push_back(std::move(shape));
  }
  return !stacked || accounted == stored[rule.stack_dim];
}

}  // namespace

std::optional<Dims> stored_shape(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes) {
  if (rule.constant) return rule.constant->shape;
  if (slices_on(rule, rank) == 0) {
    auto stored = slice_shape(rule, rule.parts, rank, shapes, 0);
    if (stored && rule.parts.front().slice) (*stored)[rule.slice_dim] = 0;
    return stored;
  }
  std::optional<Dims> stored;
  std::uint64_t count = 0;
  std::size_t first = 0;  // index of the slice's first part
  for (const Parts parts : slices_of(rule)) {
    if (is_on(parts.front(), rank)) {
      auto own = slice_shape(rule, parts, rank, shapes, first);
      if (!own || (stored && *own != *stored)) return std::nullopt;
      stored = std::move(own);
      ++count;
    }
    first += parts.size();
  }
  const auto size = checked_mul((*stored)[rule.slice_dim], count);
  if (!size) return std::nullopt;
  (*stored)[rule.slice_dim] = *size;
  return stored;
}

std::optional<std::vector<Dims>> logical_shapes(const PartitionRule& rule, std::uint32_t rank, const Dims& stored) {
  if (rule.constant) return stored == rule.constant->shape ? std::optional(std::vector<Dims>{}) : std::nullopt;
  if (!has_dims(rule, stored)) return std::nullopt;
  Dims one = stored;  // the shape of a slice
  if (const std::uint32_t slices = slices_on(rule, rank); slices != 0) {
    if (one[rule.slice_dim] % slices != 0) return std::nullopt;
    one[rule.slice_dim] /= slices;
  }
  std::vector<Dims> shapes;
  for (const Parts parts : slices_of(rule))
    if (!add_logical_shapes(rule, parts, rank, one, shapes)) return std::nullopt;
  return shapes;
}

std::vector<PartPiece> pieces_of(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes) {
  std::vector<PartPiece> pieces;
  std::uint64_t slice_at = 0;  // position along slice_dim
  std::uint32_t i = 0;
  for (const Parts parts : slices_of(rule)) {
    std::uint64_t stored_at = 0;  // position along stack_dim, in the slice
    std::uint64_t slice_size = 0;
    for (const Part& part : parts) {
      const Dims& shape = shapes[i];
      PartPiece piece{i++, false, whole(shape), Dims(shape.size(), 0)};
      if (part.slice) piece.stored_begin[rule.slice_dim] = slice_at;
      if (is_stacked(rule, parts)) piece.stored_begin[rule.stack_dim] += stored_at;
      add_pieces_of(part, rank, shape, 0, std::move(piece), pieces);
      const Dims own = *shape_on(part, rank, shape);
      stored_at += own.empty() ? 0 : own[rule.stack_dim];
      if (part.slice) slice_size = rule.slice_dim == rule.stack_dim ? stored_at : own[rule.slice_dim];
    }
    if (!parts.empty() && is_on(parts.front(), rank)) slice_at += slice_size;
  }
  return pieces;
}

std::uint32_t slices_on(const PartitionRule& rule, std::uint32_t rank) {
  std::uint32_t count = 0;
  std::optional<std::uint32_t> last;
  for (const Part& part : rule.parts) {
    if (part.slice == last || !is_on(part, rank)) continue;
    last = part.slice;
    ++count;
  }
  return count;
}

Dims file_shape(const PartitionRule& rule, std::uint32_t rank, Dims shape) {
  const std::uint32_t slices = slices_on(rule, rank);
  const std::size_t dims = shape.size() + (slices == 0 ? 0 : 1);
  const Dims order = rule.file_dims.size() == dims ? rule.file_dims : Dims();  // otherwise it applies to other shapes
  if (slices == 0) return permuted(std::move(shape), order);
  Dims in_slices;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (dim == rule.slice_dim) in_slices.push_back(slices);
    in_slices.push_back(dim == rule.slice_dim ? shape[dim] / slices : shape[dim]);
  }
  return permuted(std::move(in_slices), order);
}

std::optional<View> view_of_file(const PartitionRule& rule, std::uint32_t rank, View file) {
  if (rule.file_dims.size() == file.shape.size())  // otherwise the file has another shape than the rule defines
    file = {unpermuted(std::move(file.shape), rule.file_dims), unpermuted(std::move(file.strides), rule.file_dims)};
  return slices_on(rule, rank) == 0 ? std::optional(std::move(file)) : file.merged(rule.slice_dim);
}

std::uint32_t split_dim(const PartitionRule& rule) {
  if (rule.parts.empty() || rule.parts.front().placed.empty()) return rule.stack_dim;
  const auto& placed = rule.parts.front().placed;
  const bool along_stack =
      std::any_of(placed.begin(), placed.end(), [&](const auto& one) { return one.dim == rule.stack_dim; });
  return along_stack ? rule.stack_dim : placed.front().dim;
}

std::optional<std::uint64_t> stated_size(const PartitionRule& rule, std::uint32_t rank) {
  const std::uint32_t dim = split_dim(rule);
  if (rule.parts.empty() || (is_stacked(rule, rule.parts) && dim != rule.stack_dim)) return std::nullopt;
  if (rule.parts.front().slice && dim != rule.slice_dim) return std::nullopt;
  std::uint64_t size = 0;
  for (const Part& part : rule.parts) {
    const Placement& placement = placement_along(part, dim);
    if (!placement.unit_elems) return std::nullopt;
    size += *placement.unit_elems * placement.of(rank).size();
  }
  return size;
}

}  // namespace reshard
