#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Returns notes on the distribution of a model over `tp` ranks that users may not expect: modules that every rank has
/// whole although they are not norms or biases, such as routers, state-space mixers and vision towers; scales that are
/// not split with their linears; heads that may be split because neither a description nor config.json contains their
/// number. Empty for one rank.
Notes partition_notes(const Model& model, std::uint64_t tp);

/// Returns a note on the parameters outside the layers that `pp` stages have on the first although they may belong on
/// the last, because neither a description nor a plan in config.json defines their stage. Empty for one stage.
Notes assumed_stage_notes(const Model& model, std::uint64_t pp);

/// Like partition_notes, for a layout that splits without regard to heads: lists the linears whose heads are split.
/// Empty if no heads are split.
Notes split_heads_notes(const Model& model, std::uint64_t tp);

}  // namespace reshard
