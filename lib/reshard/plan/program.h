// plan/: from what is asked for to what will be done: map × map → program, with the proofs that it is complete,
// and the jobs that programs come from. Reads headers only; moves nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/tensor_map.h"

namespace reshard {

/// How one logical tensor is read from one map: `reads` fill it without gap or overlap, `checks` are boxes that must
/// hold the same bytes. `stored` is of that map; each list is grouped by it. A filler has no reads.
struct Reading {
  std::uint32_t logical = 0;  // index into the map
  std::vector<Piece> reads;
  std::vector<Piece> checks;
};

/// All that happens to one logical tensor.
struct Transfer {
  Transfer() = default;
  Transfer(Transfer&&) = default;  // moving keeps what `writes` views where it is; copying would not
  Transfer& operator=(Transfer&&) = default;

  const LogicalTensor* tensor = nullptr;  // as it is read; of a map of the program
  const LogicalTensor* result = nullptr;  // as it is written, or as Program::against has it; null if neither
  std::optional<Reading> source;          // nothing: a filler that only the target has
  std::vector<Reading> more;       // of the source, of the same dtype and shape: what is written is the mean of all
  std::optional<Reading> against;  // of Program::against
  std::span<const Piece> writes;   // its places in the target, a view of the target's pieces
  std::vector<Piece> own_writes;   // what `writes` views where the target's own pieces are not grouped
};

/// What is to be moved between two layouts, or compared, proved whole. The layouts must outlive it.
struct Program {
  const TensorMap* source = nullptr;
  const TensorMap* target = nullptr;   // null for a program that only reads
  const TensorMap* against = nullptr;  // a second source, to compare with
  std::vector<Transfer> transfers;

  std::uint64_t read_bytes = 0;     // source bytes that are read to be placed; of a part of the ranks, about
  std::uint64_t check_bytes = 0;    // source bytes that are read to be compared with those
  std::uint64_t skipped_bytes = 0;  // second copies that are not read
  std::uint64_t dropped_bytes = 0;  // of tensors that the request leaves out
  std::uint64_t write_bytes = 0;    // target bytes, headers not counted
};

/// A target tensor that is made of several of the source.
struct Mean {
  std::string target;
  std::vector<std::string> sources;
};

struct ProgramOptions {
  bool check_replicas = true;        // else second copies are not read, where nothing is proved by them (Layout)
  std::vector<std::string> dropped;  // logical tensors of the source that need no place
  std::vector<Mean> means;
  bool partial_target = false;  // it has only some of the ranks, and so not every part of each tensor
};

/// The program that makes `target` out of `source`. Proves both layouts (prove_tiling), that every logical tensor of
/// each side stands on the other with the same shape and a dtype that it can be cast to, and that the source covers
/// each of them whole. Every source byte is read once: placed, or, where it is a second copy (a replica on another
/// rank, a tied parameter), compared with the one that is placed.
/// \throws Error kBadInput naming the tensor and the box that is missing; kUnsupported for a cast that cannot be.
Program make_program(const TensorMap& source, const TensorMap& target, const ProgramOptions& options = {});

/// The program that reads every logical tensor of `source` once, and second copies only where they prove the map, and
/// writes nothing.
Program make_reading_program(const TensorMap& source);

/// The program that reads the tensors that both layouts hold, in the order of `a`, and compares them. Second copies on
/// either side are compared with the first, and what fills up either with what it should be: a transfer of that has
/// one side alone.
Program make_comparing_program(const TensorMap& a, const TensorMap& b);

}  // namespace reshard
