#pragma once

#include <filesystem>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// The dtype that a user asks for.
struct CastRequest {
  DType dtype = DType::kF32;
  bool all = false;       // integers and booleans are cast, too, and not floating tensors alone
  bool selected = false;  // the user named the tensors (`keep`), which need not be a model
};

/// Gives the `wanted` tensors of the job's source the dtype that is asked for. `config` is the model's config.json, or
/// null; scales that are cast are noted, and so are tensors that become float8 without scales.
/// \throws Error kUnsupported, naming the tensor, for a dtype that cannot be cast, for quantised weights, and for a
///         model that would become float8 without scales.
void cast_tensors(Job& job, std::vector<LogicalTensor>& wanted, CastRequest request, const OrderedJson& config);

}  // namespace reshard
