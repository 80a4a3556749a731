// layouts/: the tensor map of a checkpoint, read from a directory or computed for a model and a mesh. It maps boxes of
// logical tensors to boxes of stored tensors in files. A partition defines how one parameter is distributed over ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/tensor/recipes/change.h"
#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/dtype.h"
#include "reshard/tensor/values/shape.h"
#include "reshard/tensor/values/view.h"

namespace reshard {

/// How a stored tensor is partitioned.
enum class PartitionLabel : std::uint8_t {
  kWhole,
  kReplicated,
  kColumn,
  kRow,
  kFused,
  kGroupedQuery,
  kTied,
  kConstant,
  kUnknown  // of a rank's tensor that nothing explains
};

constexpr const char* name(PartitionLabel label) {
  switch (label) {
    case PartitionLabel::kWhole: return "whole";
    case PartitionLabel::kReplicated: return "replicated";
    case PartitionLabel::kColumn: return "column";
    case PartitionLabel::kRow: return "row";
    case PartitionLabel::kFused: return "fused";
    case PartitionLabel::kGroupedQuery: return "grouped query";
    case PartitionLabel::kTied: return "tied";
    case PartitionLabel::kConstant: return "constant";
    case PartitionLabel::kUnknown: return "unknown";
  }
  return "";
}

/// The chunks of a logical tensor that each rank has. One dim of the logical tensor is divided into `units` equal
/// chunks. Describes column and row partitions, strides, fused linears, grouped-query heads, replicas, padding and
/// experts.
struct Placement {
  std::uint64_t units = 1;                  // number of chunks of the logical tensor
  std::optional<std::uint64_t> unit_elems;  // size of a chunk; if unset, computed from the size of the stored tensor
  std::vector<std::vector<std::uint32_t>> taken;  // by rank, in stored order; an index >= `units` is a chunk of padding

  /// Returns the chunks of a rank. A table with fewer rows than ranks repeats: a single row applies to all ranks, and
  /// one row per tensor-parallel rank applies to every expert-parallel rank.
  const std::vector<std::uint32_t>& of(std::uint32_t rank) const { return taken[rank % taken.size()]; }
};

/// How one stored parameter is composed on every rank: the rank's chunks of each part, one part after another. Ranks
/// are numbered ep_rank × TP + tp_rank.
struct PartitionRule {
  /// The chunks along one dim of a logical tensor.
  struct PlacedDim {
    std::uint32_t dim = 0;
    std::shared_ptr<const Placement> placement;
  };
  /// A logical tensor that follows from a parameter.
  struct Changed {
    std::string parameter;
    ValueChange change;
  };
  struct Part {
    std::string logical_name;
    std::vector<PlacedDim> placed = {};  // sorted by dim; a rank has the product of these, and all of every other dim
    bool lowest = false;                 // padding is the lowest finite number of the dtype instead of zero
    /// Index of the slice that contains the part. Slices follow each other along `slice_dim`, and the parts of a slice
    /// along `stack_dim`. The tensor in the file has an additional dim, that of slices, before `slice_dim`. Set for all
    /// parts or for none. Parts are sorted by slice, and slices have equal shapes.
    std::optional<std::uint32_t> slice = std::nullopt;
    std::shared_ptr<const Changed> changed = nullptr;  // null: the logical tensor is a parameter
  };
  /// A tensor that contains no logical tensor.
  struct Constant {
    DType dtype = DType::kI32;
    Dims shape;
    /// By rank, repeating like Placement::taken: the bits of each element, or one value for all elements.
    std::vector<std::vector<std::uint64_t>> values;
    bool is_rank_number = false;

    const std::vector<std::uint64_t>& of(std::uint32_t rank) const { return values[rank % values.size()]; }
  };

  std::string stored_name;
  /// A kReplicated tensor is expected to have equal replicas, which may drift in training.
  PartitionLabel label = PartitionLabel::kReplicated;
  std::uint32_t stack_dim = 0;  // the dim along which the parts are concatenated
  std::uint32_t slice_dim = 0;  // see Part::slice
  std::vector<Part> parts;
  bool one_of_parts = false;         // the stored tensor is a replica of each part, not their concatenation
  std::optional<Constant> constant;  // if set, there are no parts
  Dims file_dims;  // element i is the dim (slices included) that dim i of the file is; empty: the same order

  bool records_originals = false;  // files record logical shapes, which stored shapes do not determine

  std::optional<std::uint32_t> expert_rank;  // the only expert-parallel rank that has it
  bool expert_parallel = false;              // belongs to experts that are distributed over ranks
  bool tied = false;       // has the parts' values under a second name: compared with them, never read
  std::string kernel;      // choice of the layout with which files have the last two dims swapped; empty: none
  bool scaled = false;     // multiplied by the weights of a norm; never read
  bool from_spec = false;  // defined by a transformation spec, not by the parameter's own entry

  /// Whether the expert-parallel rank has the tensor.
  bool is_on(std::uint32_t ep_rank) const { return expert_rank.value_or(ep_rank) == ep_rank; }
};

/// A box of one rank's stored tensor.
struct PartPiece {
  std::uint32_t part = 0;  // index into the rule's parts
  bool is_padding = false;
  Box box;            // in the part's logical tensor, or in the stored tensor if it is padding
  Dims stored_begin;  // its begin in the stored tensor
};

/// Returns the stored tensor's shape on `rank`, for logical tensors of `shapes` (one per part). Returns std::nullopt if
/// a size is not divisible into chunks or if the shapes disagree in other dims.
std::optional<Dims> stored_shape(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes);

/// Returns the logical tensors' shapes (one per part), for a stored tensor of shape `stored` on `rank`. Returns
/// std::nullopt if the size is not divisible into chunks.
std::optional<std::vector<Dims>> logical_shapes(const PartitionRule& rule, std::uint32_t rank, const Dims& stored);

/// All boxes of a rule's stored tensor on `rank`, which tile it. `shapes` are the logical tensors' shapes; stored_shape
/// must have a value for them. Empty for constants.
std::vector<PartPiece> pieces_of(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes);

/// The number of slices that the file's tensor has on `rank`; 0 if its parts are not in slices.
std::uint32_t slices_on(const PartitionRule& rule, std::uint32_t rank);

/// The shape in the file of a stored tensor that has `shape` on `rank`.
Dims file_shape(const PartitionRule& rule, std::uint32_t rank, Dims shape);

/// The view of the array `file` in which the pieces on `rank` are boxes; std::nullopt if the rows of the slices have no
/// common stride.
std::optional<View> view_of_file(const PartitionRule& rule, std::uint32_t rank, View file);

/// The dim of the logical tensors along which ranks split them.
std::uint32_t split_dim(const PartitionRule& rule);

/// The stored tensor's size along split_dim, if the rule alone determines it.
std::optional<std::uint64_t> stated_size(const PartitionRule& rule, std::uint32_t rank);

}  // namespace reshard
