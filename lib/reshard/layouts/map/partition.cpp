#include "reshard/layouts/map/partition.h"

#include <algorithm>

#include "reshard/base/checked.h"

namespace reshard {
namespace {

using Part = PartitionRule::Part;

/// All of an original as one chunk.
const Placement& whole_placement() {
  static const Placement kWhole{1, std::nullopt, {{0}}};
  return kWhole;
}

const Placement& placement_of(const Part& part) {
  return part.placement ? *part.placement : whole_placement();
}

std::uint64_t count_taken(const Part& part, std::uint32_t rank) {
  return placement_of(part).of(rank).size();
}

/// Whether parts lie one after the other.
bool is_stacked(const PartitionRule& rule) {
  return rule.parts.size() > 1 && !rule.one_of_parts;
}

/// A placement's chunks are along a dim that the tensor has.
bool has_dims(const PartitionRule& rule, const Dims& shape) {
  if (is_stacked(rule) && rule.stack_dim >= shape.size()) return false;
  return std::all_of(rule.parts.begin(), rule.parts.end(), [&](const Part& part) {
    return (!part.placement || rule.dim < shape.size()) && (!part.slices || !shape.empty());
  });
}

/// The chunk's size of an original of that size along the dim; nothing where it does not divide.
std::optional<std::uint64_t> unit_of(const Placement& placement, std::uint64_t size) {
  if (size % placement.units != 0) return std::nullopt;
  const std::uint64_t unit = size / placement.units;
  if (placement.unit_elems && *placement.unit_elems != unit) return std::nullopt;
  return unit;
}

/// What a rank has of one original.
std::optional<Dims> shape_on(const PartitionRule& rule, const Part& part, std::uint32_t rank, Dims shape) {
  if (part.placement) {
    const auto unit = unit_of(*part.placement, shape[rule.dim]);
    if (!unit) return std::nullopt;
    shape[rule.dim] = *unit * count_taken(part, rank);
  }
  if (part.slices) {
    const auto unit = unit_of(*part.slices, shape[0]);
    if (!unit) return std::nullopt;
    shape[0] = *unit * part.slices->of(rank).size();
  }
  if (rule.diagonal_columns != 0) {
    if (shape.size() != 2 || shape[1] != part.columns) return std::nullopt;
    shape[1] = rule.diagonal_columns;
  }
  return shape;
}

/// Runs of neighbours: `count` chunks from number `first` on, or of padding.
struct Run {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool is_padding = false;
};

/// The runs of a rank's chunks, in stored order.
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

/// What lies left and right of each part of a block diagonal.
void add_zeros_beside(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes,
                      std::vector<PartPiece>& pieces) {
  std::uint64_t row = 0;
  for (std::uint32_t i = 0; i < rule.parts.size(); ++i) {
    const Part& part = rule.parts[i];
    const std::uint64_t rows = shapes[i][0] / placement_of(part).units * count_taken(part, rank);
    const std::uint64_t end = part.first_column + part.columns;
    const auto add = [&](std::uint64_t begin, std::uint64_t columns) {
      pieces.push_back({i, true, {{row, begin}, {rows, columns}}, {row, begin}});
    };
    add(0, part.first_column);
    add(end, rule.diagonal_columns - end);
    row += rows;
  }
}

}  // namespace

bool PartitionRule::is_replicated() const {
  return !constant && !parts.empty() && (one_of_parts || parts.size() == 1) &&
         std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.placement == nullptr; });
}

std::optional<Dims> stored_shape(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes) {
  if (rule.constant) return rule.constant->shape;
  std::optional<Dims> stored;
  for (std::size_t i = 0; i < rule.parts.size(); ++i) {
    const Dims& shape = shapes[i];
    if (shape.size() != shapes.front().size() || !has_dims(rule, shape)) return std::nullopt;
    auto own = shape_on(rule, rule.parts[i], rank, shape);
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

std::optional<std::vector<Dims>> logical_shapes(const PartitionRule& rule, std::uint32_t rank, const Dims& stored) {
  if (rule.constant) return stored == rule.constant->shape ? std::optional(std::vector<Dims>{}) : std::nullopt;
  if (!has_dims(rule, stored)) return std::nullopt;
  if (rule.diagonal_columns != 0 && (stored.size() != 2 || stored[1] != rule.diagonal_columns)) return std::nullopt;
  const bool along_stack = is_stacked(rule) && rule.dim == rule.stack_dim;
  const bool beside_stack = is_stacked(rule) && rule.dim != rule.stack_dim;  // each part has as much of stack_dim
  if (beside_stack && stored[rule.stack_dim] % rule.parts.size() != 0) return std::nullopt;
  std::uint64_t all_taken = 0;
  for (const Part& part : rule.parts) all_taken += count_taken(part, rank);
  std::vector<Dims> shapes;
  std::uint64_t accounted = 0;  // along stack_dim, of the parts before
  for (const Part& part : rule.parts) {
    Dims shape = stored;
    if (beside_stack) shape[rule.stack_dim] /= rule.parts.size();
    if (part.placement || along_stack) {
      const Placement& placement = placement_of(part);
      const std::uint64_t size = stored[rule.dim];
      const std::uint64_t taken = count_taken(part, rank);
      const std::uint64_t units = along_stack ? all_taken : taken;
      if (!placement.unit_elems && (units == 0 || size % units != 0)) return std::nullopt;
      const std::uint64_t unit = placement.unit_elems ? *placement.unit_elems : size / units;
      if (unit == 0 && size != 0) return std::nullopt;  // an original without elements beside one that has some
      const auto full = checked_mul(unit, placement.units);
      const auto own = checked_mul(unit, taken);
      const auto sum = own && along_stack ? checked_add(accounted, *own) : own;
      if (!full || !sum || (!along_stack && *own != size)) return std::nullopt;
      accounted = *sum;
      shape[rule.dim] = *full;
    }
    if (part.slices) {
      const std::uint64_t taken = part.slices->of(rank).size();
      if (taken == 0 || stored[0] % taken != 0) return std::nullopt;
      const auto full = checked_mul(stored[0] / taken, part.slices->units);
      if (!full) return std::nullopt;
      shape[0] = *full;
    }
    if (rule.diagonal_columns != 0) shape[1] = part.columns;
    shapes.push_back(std::move(shape));
  }
  if (along_stack && accounted != stored[rule.dim]) return std::nullopt;
  return shapes;
}

std::vector<PartPiece> pieces_of(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes) {
  std::vector<PartPiece> pieces;
  if (rule.diagonal_columns != 0) add_zeros_beside(rule, rank, shapes, pieces);
  std::uint64_t stored_at = 0;  // along stack_dim
  for (std::uint32_t i = 0; i < rule.parts.size(); ++i) {
    const Part& part = rule.parts[i];
    const Dims& shape = shapes[i];
    PartPiece piece{i, false, whole(shape), Dims(shape.size(), 0)};
    if (is_stacked(rule)) piece.stored_begin[rule.stack_dim] = stored_at;
    if (rule.diagonal_columns != 0) piece.stored_begin[1] = part.first_column;
    const auto add_chunks = [&](PartPiece slice) {
      if (!part.placement) {
        pieces.push_back(std::move(slice));
        return;
      }
      const std::uint64_t unit = shape[rule.dim] / part.placement->units;
      for_each_run(*part.placement, rank, [&](const Run& run) {
        PartPiece next = slice;
        next.is_padding = run.is_padding;
        next.box.size[rule.dim] = run.count * unit;
        if (run.is_padding)
          next.box.begin = next.stored_begin;
        else
          next.box.begin[rule.dim] = run.first * unit;
        slice.stored_begin[rule.dim] += run.count * unit;
        pieces.push_back(std::move(next));
      });
    };
    if (part.slices) {
      const std::uint64_t unit = shape[0] / part.slices->units;
      for_each_run(*part.slices, rank, [&](const Run& run) {
        PartPiece slice = piece;
        slice.box.begin[0] = run.first * unit;
        slice.box.size[0] = run.count * unit;
        piece.stored_begin[0] += run.count * unit;
        add_chunks(std::move(slice));
      });
    } else {
      add_chunks(piece);
    }
    if (is_stacked(rule)) stored_at += (*shape_on(rule, part, rank, shape))[rule.stack_dim];
  }
  return pieces;
}

std::uint32_t slices_on(const PartitionRule& rule, std::uint32_t rank) {
  if (rule.parts_per_slice == 0) return 0;
  const auto held = std::count_if(rule.parts.begin(), rule.parts.end(),
                                  [&](const Part& part) { return count_taken(part, rank) != 0; });
  return static_cast<std::uint32_t>(held) / rule.parts_per_slice;
}

std::optional<std::uint64_t> stated_size(const PartitionRule& rule, std::uint32_t rank) {
  if (rule.parts.empty() || (is_stacked(rule) && rule.dim != rule.stack_dim)) return std::nullopt;
  std::uint64_t size = 0;
  for (const Part& part : rule.parts) {
    if (!placement_of(part).unit_elems) return std::nullopt;
    size += *part.placement->unit_elems * count_taken(part, rank);
  }
  return size;
}

}  // namespace reshard
