// plan/: from what is asked for to what will be done: layout × layout → program, with the proofs that it is complete,
// and the jobs that programs come from. Reads headers only; moves nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/layouts/layout.h"

namespace reshard {

/// All that happens to one logical tensor: `reads` fill it without gap or overlap from the source, `checks` are source
/// boxes that must hold the same bytes, `writes` are its places in the target, a view of the target layout's pieces.
/// Each list is grouped by stored tensor.
struct Transfer {
  Transfer() = default;
  Transfer(Transfer&&) = default;  // moving keeps what `writes` views where it is; copying would not
  Transfer& operator=(Transfer&&) = default;

  std::uint32_t source_logical = 0;  // index into the source layout
  std::vector<Piece> reads;          // `stored` is of the source
  std::vector<Piece> checks;         // `stored` is of the source
  std::span<const Piece> writes;     // `stored` is of the target
  std::vector<Piece> own_writes;     // what `writes` views where the target's own pieces are not grouped
};

/// What is to be moved between two layouts, proved whole. Both layouts must outlive it.
struct Program {
  const Layout* source = nullptr;
  const Layout* target = nullptr;  // null for a program that only reads
  std::vector<Transfer> transfers;

  std::uint64_t read_bytes = 0;   // source bytes that are read to be placed
  std::uint64_t check_bytes = 0;  // source bytes that are read to be compared
  std::uint64_t write_bytes = 0;  // target bytes, headers not counted
};

/// The program that makes `target` out of `source`. Proves both layouts (prove_tiling), that every logical tensor of
/// each side stands on the other with the same dtype and shape, and that the source covers each of them whole. Every
/// source byte is read once: placed, or, where it is a second copy (a replica on another rank, a tied parameter),
/// compared with the one that is placed.
/// \throws Error kBadInput naming the tensor and the box that is missing.
Program make_program(const Layout& source, const Layout& target);

/// The program that reads every logical tensor of `source` once and writes nothing.
Program make_reading_program(const Layout& source);

}  // namespace reshard
