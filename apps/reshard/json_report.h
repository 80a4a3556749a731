#pragma once

#include <string>

#include "reshard/base/json.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/publish/output.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// A document for machines; keys keep the order they are given.
using Document = OrderedJson;

/// What a job will write, or has written: the --json output of shard and consolidate. `result` is null for a dry run.
Document job_document(const Job& job, const OutputSpace& space, const RunResult* result);

/// What this run itself wrote; 0 where it took no time.
double bytes_per_second(const RunResult& result);

/// One object for each: tensor, text, whether it is drift and how much.
Document divergent_document(const std::vector<Divergence>& divergent);

/// The document as it is printed; invalid UTF-8 in names is replaced, since JSON cannot contain it.
std::string to_text(const Document& document);

}  // namespace reshard::cli
