// layouts/: which box of which original tensor lies where in which file: the layout of a checkpoint, read from a
// directory or worked out for a model and a mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/specs/transformation_specs.h"
#include "reshard/tensor/shape.h"

namespace reshard {

/// What a reader of a table wants to know about how a stored tensor is cut.
enum class CutKind : std::uint8_t { kWhole, kReplicated, kColumn, kRow, kFused, kGroupedQuery, kTied, kConstant };

constexpr const char* name(CutKind kind) {
  switch (kind) {
    case CutKind::kWhole: return "whole";
    case CutKind::kReplicated: return "replicated";
    case CutKind::kColumn: return "column";
    case CutKind::kRow: return "row";
    case CutKind::kFused: return "fused";
    case CutKind::kGroupedQuery: return "grouped query";
    case CutKind::kTied: return "tied";
    case CutKind::kConstant: return "constant";
  }
  return "";
}

/// How one stored tensor of one rank is made: along `dim`, each original is seen as `units` equal chunks, and the
/// stored tensor is the chunks `taken`, one after the other, original after original. Column, row, stride, fused
/// linears, grouped-query heads, replication: all are this. A replicated tensor of several parts is each of them,
/// whole.
struct Cut {
  struct Part {
    std::string logical_name;
    std::uint64_t units = 1;                  // chunks of the original along dim
    std::vector<std::uint32_t> taken;         // which of them, in stored order; from `units` on: a chunk of filler
    std::optional<std::uint64_t> unit_elems;  // size of a chunk along dim; without it, what the tensor's size gives
    std::uint64_t first_column = 0;           // of a diagonal cut: the part's columns in the stored tensor
    std::uint64_t columns = 0;
    bool lowest = false;  // filler is the lowest finite number of the dtype, else zero
  };
  /// A tensor of one number, made of no original.
  struct Constant {
    DType dtype = DType::kI32;
    Dims shape;
    std::uint64_t bits = 0;  // of each element
  };

  CutKind kind = CutKind::kReplicated;
  std::uint32_t dim = 0;
  std::vector<Part> parts;
  /// Of a diagonal cut, the columns of the stored matrix: each part has rows (dim is 0) and columns of its own, all
  /// else is zeros. 0 for every other cut.
  std::uint64_t diagonal_columns = 0;
  std::optional<Constant> constant;  // then there are no parts
  /// Of experts stacked in dim 0, which is not the dim above: the originals' dim 0 in so many equal parts, and the one
  /// that is taken.
  std::uint32_t stacked_parts = 1;
  std::uint32_t stacked_part = 0;

  std::uint64_t taken_units() const;
};

/// Which chunks of an original each rank has, as a table.
struct Placement {
  std::uint64_t units = 1;                        // chunks of the original
  std::uint64_t unit_elems = 1;                   // size of a chunk
  std::vector<std::vector<std::uint32_t>> taken;  // of each rank; from `units` on: filler
};

/// One parameter of a rank's state dict, and what its metadata says about it.
struct CutRule {
  std::string stored_name;
  CutKind kind;
  const ParallelParameter* parameter = nullptr;
  const FusedLinearsSpec* fused = nullptr;
  const GQAQKVColumnParallelLinearSpec* gqa = nullptr;
  std::string prefix;  // of the module, with its dot
  std::string suffix;  // ".weight", ".bias", ".lora_B.weight", …
  /// kShared: an adapter's lora_A, which is that of each joined linear. kStacked: those of all, one under the other.
  /// kPlaced: as `placed` says. kRankNumber: an I32 of shape [1], the number of the rank.
  enum class Role : std::uint8_t {
    kPlain,
    kFused,
    kQuery,
    kKey,
    kValue,
    kQkv,
    kOutput,
    kShared,
    kStacked,
    kPlaced,
    kRankNumber
  };
  Role role = Role::kPlain;
  std::shared_ptr<const ParallelParameter> own;  // that `parameter` points to, where there is no metadata
  struct Placed {
    std::string logical_name;
    std::shared_ptr<const Placement> placement;  // null: all of it
    bool lowest = false;                         // as of Cut::Part
  };
  std::vector<Placed> placed;
  std::uint32_t dim = 0;  // of `placed`

  /// The cut of one tensor-parallel rank of `tp`, on one expert-parallel rank.
  Cut for_rank(std::uint32_t tp_rank, std::uint32_t tp, std::uint32_t ep_rank = 0) const;

  /// Whether the expert-parallel rank has it.
  bool is_on(std::uint32_t ep_rank) const;

 private:
  std::vector<std::string> linears() const;
  const std::vector<std::uint64_t>& stacked_ranks() const;
  void add_heads(Cut& cut, std::uint32_t tp_rank) const;
  void make_diagonal(Cut& cut) const;
};

/// The rule of every parameter in a stage's metadata, in its order. `metadata` is borrowed and must outlive the rules.
std::vector<CutRule> cut_rules(const StageMetadata& metadata);

/// The stored tensor's shape, for originals of `logical_shapes` (one a part). Nothing if a size does not divide into
/// units or the shapes disagree in other dims.
std::optional<Dims> stored_shape(const Cut& cut, const std::vector<Dims>& logical_shapes);

/// The originals' shapes (one a part), for a stored tensor of `stored`. Nothing if the size does not come out even.
std::optional<std::vector<Dims>> logical_shapes(const Cut& cut, const Dims& stored);

}  // namespace reshard
