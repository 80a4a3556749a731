#pragma once

#include <memory>

#include "reshard/io/files.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/job/request.h"

namespace reshard {

/// Returns the job for a request. Reads headers and metadata; does not write.
/// \throws Error of every kind but kInternal.
std::unique_ptr<Job> plan(Files& files, const Request& request);

// Presets of plan: they fill in what a request leaves open, and restrict the kind of source.

/// Shards whole tensors, in default_rank_layout() unless the request has another layout.
std::unique_ptr<Job> plan_shard(Files& files, Request request);
/// Consolidates ranks into whole tensors.
std::unique_ptr<Job> plan_consolidate(Files& files, Request request);
/// Converts between any two layouts.
std::unique_ptr<Job> plan_convert(Files& files, Request request);

}  // namespace reshard
