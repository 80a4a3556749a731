// layouts/: which box of which original tensor lies where in which file: the tensor map of a checkpoint, read from a
// directory or worked out for a model and a mesh. A partition says how one parameter is spread over ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  kConstant
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
  }
  return "";
}

/// Which chunks of an original each rank has: along one dim the original is seen as `units` equal chunks. Column, row,
/// stride, fused linears, grouped-query heads, replicas, padding, experts: all are this.
struct Placement {
  std::uint64_t units = 1;                        // chunks of the original
  std::optional<std::uint64_t> unit_elems;        // size of a chunk; without it, what the stored tensor's size gives
  std::vector<std::vector<std::uint32_t>> taken;  // by rank, in stored order; from `units` on: a chunk of padding

  /// Those of a rank. A table of fewer rows than there are ranks repeats: one row is that of all, one a
  /// tensor-parallel rank is the same on every expert-parallel rank.
  const std::vector<std::uint32_t>& of(std::uint32_t rank) const { return taken[rank % taken.size()]; }
};

/// How one stored parameter is made on every rank: of each part the chunks that a rank has, part after part. A rank is
/// counted as ep_rank × TP + tp_rank.
struct PartitionRule {
  /// The chunks along one dim of an original.
  struct PlacedDim {
    std::uint32_t dim = 0;
    std::shared_ptr<const Placement> placement;
  };
  struct Part {
    std::string logical_name;
    std::vector<PlacedDim> placed = {};  // in the order of dims; a rank has the product, and all of every other dim
    bool lowest = false;                 // padding is the lowest finite number of the dtype, else zero
    /// The number of the slice that the part belongs to, of a file's tensor with one dim more than the parts: that of
    /// slices, in front of `stack_dim`. Either all parts have one or none has. Parts are in the order of slices, which
    /// have equal sizes.
    std::optional<std::uint32_t> slice = std::nullopt;
  };
  /// A tensor that is made of no original.
  struct Constant {
    DType dtype = DType::kI32;
    Dims shape;
    /// By rank, and repeating as Placement::taken does: the bits of each element, or one for all of them.
    std::vector<std::vector<std::uint64_t>> values;
    bool is_rank_number = false;

    const std::vector<std::uint64_t>& of(std::uint32_t rank) const { return values[rank % values.size()]; }
  };

  std::string stored_name;
  PartitionLabel label = PartitionLabel::kReplicated;  // kReplicated is relied upon: its replicas may drift in training
  std::uint32_t stack_dim = 0;                         // along which the parts lie one after the other
  std::vector<Part> parts;
  bool one_of_parts = false;  // the stored tensor is each of the parts, not all of them: a replica of several originals
  std::optional<Constant> constant;  // then there are no parts
  Dims file_dims;  // element i is the dim here, slices included, of the file's dim i; empty: the same order

  bool records_originals = false;  // files say how large the originals are, as stored sizes do not show it

  std::optional<std::uint32_t> expert_rank;  // the only expert-parallel rank that has it
  bool expert_parallel = false;              // of experts that are spread over ranks
  bool tied = false;                         // the parts' values under a second name: compared with them, never read
  bool from_spec = false;                    // a transformation spec says it, not the parameter's own entry

  /// Whether the expert-parallel rank has it.
  bool is_on(std::uint32_t ep_rank) const { return expert_rank.value_or(ep_rank) == ep_rank; }
};

/// A box that one rank's stored tensor holds.
struct PartPiece {
  std::uint32_t part = 0;  // index into the rule's parts
  bool is_padding = false;
  Box box;            // of the part's original; of padding, of the stored tensor
  Dims stored_begin;  // where it lies in the stored tensor
};

/// The stored tensor's shape on `rank`, for originals of `shapes` (one a part). Nothing if a size does not divide into
/// chunks or the shapes disagree in other dims.
std::optional<Dims> stored_shape(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes);

/// The originals' shapes (one a part), for a stored tensor of `stored` on `rank`. Nothing if the size does not come out
/// even.
std::optional<std::vector<Dims>> logical_shapes(const PartitionRule& rule, std::uint32_t rank, const Dims& stored);

/// All boxes of a rule's stored tensor on `rank`, which tile it. `shapes` are those of the originals, for which
/// stored_shape has a value. Constants have none.
std::vector<PartPiece> pieces_of(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes);

/// How many slices the file's tensor has on `rank`; 0 if its parts are in none.
std::uint32_t slices_on(const PartitionRule& rule, std::uint32_t rank);

/// The shape in the file of a stored tensor of `shape` on `rank`.
Dims file_shape(const PartitionRule& rule, std::uint32_t rank, Dims shape);

/// The view of the array `file` in which pieces on `rank` are boxes; std::nullopt if the rows of slices have no common
/// stride.
std::optional<View> view_of_file(const PartitionRule& rule, std::uint32_t rank, View file);

/// The dim of the originals along which ranks split them.
std::uint32_t split_dim(const PartitionRule& rule);

/// The size that the rule gives the stored tensor along split_dim by itself, where it does.
std::optional<std::uint64_t> stated_size(const PartitionRule& rule, std::uint32_t rank);

}  // namespace reshard
