#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Why two boxes must contain the same bytes. Determines how an error describes a difference and its possible cause;
/// running the program does not depend on it.
enum class CheckReason : std::uint8_t {
  kReplica,   // the same box of the tensor on another rank
  kTied,      // another parameter shares this one's values
  kConstant,  // LogicalTensor::constant: padding, or a value that the layout requires
};

/// A box of a stored tensor that is compared with the box that was read. Consists of a Piece and the reason for the
/// check, ordered so that it is as small as a Piece: a large program has millions.
struct Check {
  Check() = default;
  Check(const Piece& piece, CheckReason why)
      : stored(piece.stored), reason(why), box(piece.box), stored_begin(piece.stored_begin) {}

  std::uint32_t stored = 0;  // index into TensorMap::stored
  CheckReason reason = CheckReason::kReplica;
  bool may_drift = false;   // each rank trains its own replica, which may drift
  bool may_differ = false;  // the caller may choose to keep the first; false if equal replicas are the only evidence
  Box box;                  // in the logical tensor
  Dims stored_begin;

  friend bool operator==(const Check&, const Check&) = default;
};

static_assert(sizeof(Check) == sizeof(Piece));

/// Returns the check of `piece`, a box of `map.logical[logical]`. `reads` are the pieces to compare with, in order.
Check make_check(const SourceMap& map, std::uint32_t logical, const std::vector<Piece>& reads, const Piece& piece);

/// Returns the error for a check that found different bytes.
/// \param logical  index of the tensor that was read.
/// \param reads    as in make_check.
/// \param index    of the first element that differs.
/// \param detail   further information on the difference, appended after a semicolon; may be empty.
/// \returns kBadInput with the file and stored tensor of `check`, and a hint at the possible cause.
Error failed_check(const SourceMap& map, std::uint32_t logical, const std::vector<Piece>& reads, const Check& check,
                   const Dims& index, std::string_view detail = {});

}  // namespace reshard
