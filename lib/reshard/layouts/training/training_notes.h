#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/specs/model/model.h"

namespace reshard {

/// What a user may not expect of how `tp` ranks share a model: the modules that every rank has all of although they are
/// no norms or biases, such as routers, state-space mixers and vision towers; scales that are not split with their
/// linears; that heads may be split, where neither a description nor config.json says how many there are. Nothing for
/// one rank.
std::vector<std::string> partition_notes(const Model& model, std::uint64_t tp);

/// The parameters outside the layers that `pp` stages have on the first although they may belong on the last: those of
/// which a description or a plan in config.json does not say it. Nothing for one stage.
std::vector<std::string> assumed_stage_notes(const Model& model, std::uint64_t pp);

/// The same as partition_notes of a layout that splits without regard to heads: which linears are split through one; nothing if none is.
std::vector<std::string> split_heads_notes(const Model& model, std::uint64_t tp);

}  // namespace reshard
