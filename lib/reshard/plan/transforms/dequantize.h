#pragma once

#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Replaces weights in MXFP4, and those that a "factor" of their quantisation method multiplies (quantization.h), with the
/// values that they represent, if the request has a dtype, as other dtypes have no scales. Other quantised weights stay as
/// they are, and so do weights that the target stores as they are (LayoutTraits::stores).
/// \throws Error kUnsupported for weights in MXFP4 without scales next to others that are dequantised, and for scales
/// without weights.
void dequantize(Draft& draft, const Request& request);

}  // namespace reshard
