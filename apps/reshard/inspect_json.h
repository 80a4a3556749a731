#pragma once

#include <string>
#include <vector>

#include "inspection.h"
#include "json_report.h"

namespace reshard::cli {

/// Returns the JSON document, with the totals of `all` and one entry for each of `shown`.
Document inspect_document(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& all,
                          const std::vector<TensorRow>& shown);

/// Returns the document for a directory with several sharded adapters.
Document adapters_document(const std::string& path, const std::vector<Checkpoint>& adapters);

}  // namespace reshard::cli
