#pragma once

#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Replaces weights in MXFP4 with the bfloat16 values that they represent, if the request has a dtype, as other dtypes
/// have no blocks and scales. Other quantised weights stay as they are.
/// \throws Error kUnsupported for blocks without scales next to other weights in MXFP4, and for scales without blocks.
void dequantize(Draft& draft, const Request& request);

}  // namespace reshard
