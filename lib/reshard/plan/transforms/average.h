#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// A tensor that is the mean of others.
struct Average {
  std::string name;
  std::vector<std::string> terms;  // names; the first one's dtype, shape and role are the mean's
};

/// Adds the means, as the last tensors. Terms stay, but need no place in a target; those that are the same bytes of a file
/// count once in the mean.
/// \throws Error kInternal if `source` has no such term.
SourceMap average(SourceMap source, const std::vector<Average>& means);

}  // namespace reshard
