// plan/: turns requests into jobs with programs: map × map → program, validated as complete. Reads only headers and
// moves no data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/job/check.h"

namespace reshard {

/// How one logical tensor is read from one map: `reads` cover it without gaps or overlap, and `checks` are boxes that
/// must contain the same bytes. `stored` indexes the map, and each list is grouped by it. Computed tensors lack reads.
struct Reading {
  std::uint32_t logical = 0;  // index into the map
  std::vector<Piece> reads;
  std::vector<Check> checks;
  std::vector<Reading> inputs;  // inputs of a computed tensor, in the same map, in the order of Computed::inputs

  friend bool operator==(const Reading&, const Reading&) = default;
};

/// The maps to which a program's indices refer: borrowed; the maps from which it was created, or equal ones. Separate
/// from the program, so that both can be copied, moved and sent to another process.
struct ProgramMaps {
  const SourceMap* source = nullptr;
  const TargetMap* target = nullptr;   // null for a program that only reads
  const SourceMap* against = nullptr;  // a second source, to compare with; may be null
};

/// Everything that happens to one logical tensor: a value type whose indices refer to the program's maps.
struct Transfer {
  std::optional<Reading> source;  // std::nullopt for a constant that only the target or `against` has
  std::optional<Reading> against;
  std::optional<std::uint32_t> target;  // index of the logical tensor to write; std::nullopt if nothing is written
  std::vector<Piece> regrouped_writes;  // the target's pieces, grouped by `stored`; empty if the map's already are

  /// Returns the logical tensor as it is read. `maps` are those of the program.
  const LogicalTensor& tensor(const ProgramMaps& maps) const;
  /// Returns the tensor as it is written, or as ProgramMaps::against has it; nullptr if neither.
  const LogicalTensor* result(const ProgramMaps& maps) const;
  /// Returns its pieces in the target, grouped by `stored`, borrowed from `maps` or from this; empty if it has none.
  std::span<const Piece> writes(const ProgramMaps& maps) const;
  /// Returns the dims from the outermost to the innermost in the target's file, or in the first of several files. Empty
  /// for C order, if nothing is written, and if the tensor is computed by a recipe that requires C order.
  Dims order(const ProgramMaps& maps) const;
  /// Returns the number of bytes that are read, compared and written: the cost.
  std::uint64_t moved_bytes(const ProgramMaps& maps) const;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// The transfers from one map to another, or for comparing maps, validated to be complete. Contains indices and boxes,
/// but no addresses, so that programs can be copied and compared, and each process of a run can plan its own.
struct Program {
  std::vector<Transfer> transfers;

  std::uint64_t read_bytes = 0;     // source bytes to read and place; an estimate if only some ranks are written
  std::uint64_t check_bytes = 0;    // source bytes to read and compare with those
  std::uint64_t skipped_bytes = 0;  // replicas that are not read
  std::uint64_t dropped_bytes = 0;  // bytes of tensors that the request leaves out
  std::uint64_t write_bytes = 0;    // target bytes, without headers

  friend bool operator==(const Program&, const Program&) = default;
};

struct ProgramOptions {
  bool check_replicas = true;        // if false, reads replicas only if they are the only evidence for the map
  std::vector<std::string> dropped;  // logical tensors of the source that the target may lack
  bool partial_target = false;       // the target has only some of the ranks, so not every piece of each tensor
};

/// Creates the program that converts `source` to `target`. Validates that both maps are tiled (validate_tiling), that
/// every logical tensor of either map is in the other with the same shape and a dtype that it can be cast to, and that
/// the source covers it completely. Transfers are in the order of the source, but those that interleave (interleave.h)
/// follow each other. Every source byte is read once: placed, or, if it belongs to a replica or a tied
/// parameter, compared with the placed byte. The target may lack tensors that others are computed from.
/// \throws Error kBadInput naming the tensor and the missing box, or the input that a recipe cannot use; kUnsupported
/// for an unsupported cast.
Program make_program(const SourceMap& source, const TargetMap& target, const ProgramOptions& options = {});

/// Creates the program that reads every logical tensor of `source` once and writes nothing. Replicas are read and
/// compared only if they are evidence for the map, or with `check_replicas`.
Program make_reading_program(const SourceMap& source, bool check_replicas = false);

/// Creates the program that compares the tensors that both maps contain, in the order of `a`. Replicas in either map
/// are compared with the first, and constants with their expected values: a transfer of a constant has only one side.
Program make_comparing_program(const SourceMap& a, const SourceMap& b);

}  // namespace reshard
