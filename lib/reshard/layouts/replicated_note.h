#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/specs/model.h"

namespace reshard {

/// Which modules with matrices every one of `tp` ranks has all of, though other matrices are split: routers, mixers
/// that no reference splits, the other parts of a model. Nothing where there are none.
std::optional<std::string> replicated_note(const Model& model, std::uint64_t tp);

}  // namespace reshard
