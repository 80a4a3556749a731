#pragma once

#include <optional>

#include "reshard/io/files.h"
#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Sets the dtypes of the wanted tensors to the requested dtype, or else to that of the model or of the target's
/// layout. Adds notes, also on scales that are cast and on tensors that could be.
/// \param base_dtype  the dtype of the model that the tensors are written next to: used instead of the one in their own
///                    config.json.
/// \throws Error kUnsupported, naming the tensor, for a dtype that cannot be cast, for quantised weights, and for a
/// model that would become float8 without scales; kBadInput, naming the key, if the dtype in config.json is needed and
/// is invalid.
void cast(Files& files, Draft& draft, const Request& request, std::optional<DType> base_dtype = {});

/// Returns the most frequent dtype of 16 or 32 bits among the wanted tensors that belong to no quantised linear, or
/// std::nullopt.
std::optional<DType> plain_dtype(const Draft& draft);

}  // namespace reshard
