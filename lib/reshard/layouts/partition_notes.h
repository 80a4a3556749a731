#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/specs/model.h"

namespace reshard {

/// What a user may not expect of how `tp` ranks share a model: the modules that every rank has all of although they are
/// no norms or biases, such as routers, state-space mixers and vision towers; scales that are not split with their
/// linears; that heads may be split, where neither a description nor config.json says how many there are. Nothing for
/// one rank.
std::vector<std::string> partition_notes(const Model& model, std::uint64_t tp);

/// The same of a layout that splits without regard to heads: which linears are split through one; nothing if none is.
std::vector<std::string> split_heads_notes(const Model& model, std::uint64_t tp);

}  // namespace reshard
