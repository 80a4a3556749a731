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

namespace reshard {

/// How a stored tensor is partitioned, as reports print it; nothing else depends on it.
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
  struct Part {
    std::string logical_name;
    std::shared_ptr<const Placement> placement = nullptr;  // along `dim`; null: all of it
    bool lowest = false;             // padding is the lowest finite number of the dtype, else zero
    std::uint64_t first_column = 0;  // of a block diagonal: the part's columns in the stored tensor
    std::uint64_t columns = 0;
    std::shared_ptr<const Placement> slices = nullptr;  // along dim 0, where `dim` is another; null: all of it
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
  PartitionLabel label = PartitionLabel::kReplicated;
  std::uint32_t dim = 0;        // of each part's original, along which its placement is
  std::uint32_t stack_dim = 0;  // along which the parts lie one after the other
  std::vector<Part> parts;
  bool one_of_parts = false;  // the stored tensor is each of the parts, not all of them: a replica of several originals
  /// Of a block diagonal, the columns of the stored matrix: each part has rows (both dims are 0) and columns of its
  /// own, all else is zeros. 0 for all others.
  std::uint64_t diagonal_columns = 0;
  std::optional<Constant> constant;  // then there are no parts
  /// The file's tensor has one dim more, in front: a slice of it is so many parts, stacked in dim 0. 0: it has the
  /// parts' dims.
  std::uint32_t parts_per_slice = 0;
  bool transposed =
      false;  // the file has the last two dims the other way round; all here is as the originals have them

  bool records_originals = false;  // files say how large the originals are, as stored sizes do not show it

  std::optional<std::uint32_t> expert_rank;  // the only expert-parallel rank that has it
  bool expert_parallel = false;              // of experts that are spread over ranks
  bool tied = false;                         // the parts' values under a second name: compared with them, never read
  bool from_spec = false;                    // a transformation spec says it, not the parameter's own entry

  /// Whether the expert-parallel rank has it.
  bool is_on(std::uint32_t ep_rank) const { return expert_rank.value_or(ep_rank) == ep_rank; }
  /// Whether every rank has all of it: a parameter that each trains a replica of.
  bool is_replicated() const;
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
/// stored_shape has a value. Constants have none. Padding of a block diagonal comes first.
std::vector<PartPiece> pieces_of(const PartitionRule& rule, std::uint32_t rank, const std::vector<Dims>& shapes);

/// How many slices the file's tensor has on `rank`, where it has a dim more than the parts; else 0.
std::uint32_t slices_on(const PartitionRule& rule, std::uint32_t rank);

/// The size that the rule gives the stored tensor along stack_dim by itself, where it does.
std::optional<std::uint64_t> stated_size(const PartitionRule& rule, std::uint32_t rank);

}  // namespace reshard
