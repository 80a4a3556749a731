#pragma once

#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Appends the means to the tensors. Terms stay, but a target may lack them; terms with the same bytes of a file count
/// once in the mean.
/// \throws Error kInternal if `source` has no such term.
SourceMap average(SourceMap source, const std::vector<Average>& means);

/// Adds to `source` the tensors that `target` computes from its tensors, unless the source contains them already.
void add_computed(SourceMap& source, const TargetMap& target);

}  // namespace reshard
