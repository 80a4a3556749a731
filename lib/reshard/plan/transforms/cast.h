#pragma once

#include "reshard/io/files.h"
#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Gives the wanted tensors the dtype that the request asks for, else that of the model or of the target's layout, with
/// notes: also on scales that are cast, and on tensors that could be.
/// \throws Error kUnsupported, naming the tensor, for a dtype that cannot be cast, for quantised weights, and for a model
/// that would become float8 without scales; kBadInput, naming the key, if a dtype that config.json says is to be taken and
/// is none.
void cast(Files& files, Draft& draft, const Request& request);

}  // namespace reshard
