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

/// Replaces terms by their means, which come last. Terms that are the same bytes of a file count once.
/// \throws Error kInternal if `source` has no such term.
SourceMap average(SourceMap source, const std::vector<Average>& means);

}  // namespace reshard
