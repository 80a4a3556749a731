#pragma once

#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Adds the means, as the last tensors. Terms stay, but need no place in a target; those that are the same bytes of a file
/// count once in the mean.
/// \throws Error kInternal if `source` has no such term.
SourceMap average(SourceMap source, const std::vector<Average>& means);

}  // namespace reshard
