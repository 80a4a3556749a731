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

/// How one logical tensor is read from one map: `reads` fill it without gap or overlap, `checks` are boxes that must
/// hold the same bytes. `stored` is of that map; each list is grouped by it. A tensor that is computed has no reads.
struct Reading {
  std::uint32_t logical = 0;  // index into the map
  std::vector<Piece> reads;
  std::vector<Check> checks;
  std::vector<Reading> inputs;  // of a tensor that is computed: of the same map, in the order of Computed::inputs

  friend bool operator==(const Reading&, const Reading&) = default;
};

/// The maps whose tensors and pieces a program's indices mean: borrowed, and the very maps that it was made from, or
/// equal ones. Kept apart from the program so that both can be copied, moved and sent to another process.
struct ProgramMaps {
  const SourceMap* source = nullptr;
  const TargetMap* target = nullptr;   // null for a program that only reads
  const SourceMap* against = nullptr;  // a second source, to compare with
};

/// All that happens to one logical tensor: a value, whose indices mean tensors of the program's maps.
struct Transfer {
  std::optional<Reading> source;  // none: a constant that only the target, or the map compared with, has
  std::optional<Reading> against;
  std::optional<std::uint32_t> target;  // index of the logical tensor that is written; none if nothing is
  std::vector<Piece> regrouped_writes;  // the target's pieces, grouped by `stored`; empty where they are already

  /// The logical tensor as it is read. \p maps are the program's.
  const LogicalTensor& tensor(const ProgramMaps& maps) const;
  /// As it is written, or as ProgramMaps::against has it; null if neither.
  const LogicalTensor* result(const ProgramMaps& maps) const;
  /// Its places in the target, grouped by `stored`; borrowed from `maps` or from this. Empty if nothing is written.
  std::span<const Piece> writes(const ProgramMaps& maps) const;
  /// The dims from the outermost to the innermost in the target's file, the first if it is written to several; empty for
  /// C order, if nothing is written, and if it is computed by a recipe that wants C order.
  Dims order(const ProgramMaps& maps) const;
  /// Bytes that are read, compared and written for it: what it costs.
  std::uint64_t moved_bytes(const ProgramMaps& maps) const;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What is to be moved from one map to another, or compared, validated whole. It holds indices and boxes and no
/// address, so that it can be copied, compared, and planned anew by each process of a run.
struct Program {
  std::vector<Transfer> transfers;

  std::uint64_t read_bytes = 0;     // source bytes that are read to be placed; an estimate where only some ranks are
  std::uint64_t check_bytes = 0;    // source bytes that are read to be compared with those
  std::uint64_t skipped_bytes = 0;  // replicas that are not read
  std::uint64_t dropped_bytes = 0;  // of tensors that the request leaves out
  std::uint64_t write_bytes = 0;    // target bytes, headers not counted

  friend bool operator==(const Program&, const Program&) = default;
};

struct ProgramOptions {
  bool check_replicas = true;        // else replicas are not read, unless they are the only evidence for the map
  std::vector<std::string> dropped;  // logical tensors of the source that need no place
  bool partial_target = false;       // it has only some of the ranks, and so not every part of each tensor
};

/// The program that makes `target` out of `source`. Validates that both maps are tiled (validate_tiling), that every
/// logical tensor of each side is on the other with the same shape and a dtype that it can be cast to, and that the
/// source covers each of them whole. Every source byte is read once: placed, or, where it is a replica or a tied
/// parameter, compared with the one that is placed. A tensor that others are computed from needs no place in the target.
/// \throws Error kBadInput naming the tensor and the box that is missing, or the input that a recipe cannot take;
/// kUnsupported for a cast that cannot be.
Program make_program(const SourceMap& source, const TargetMap& target, const ProgramOptions& options = {});

/// The program that reads every logical tensor of `source` once, and writes nothing. Replicas are read, and compared,
/// only where they are the evidence for the map, or if all are to be.
Program make_reading_program(const SourceMap& source, bool check_replicas = false);

/// The program that reads the tensors that both maps hold, in the order of `a`, and compares them. Replicas on either
/// side are compared with the first, and constants with what they should be: a transfer of a constant has one side alone.
Program make_comparing_program(const SourceMap& a, const SourceMap& b);

}  // namespace reshard
