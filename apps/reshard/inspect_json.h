#pragma once

#include <string>
#include <vector>

#include "checkpoint_report.h"
#include "json_report.h"

namespace reshard::cli {

/// Returns the JSON document.
Document inspect_document(const CheckpointReport& report);

/// Returns the document for a directory with several sharded adapters, and `notes` on all of them.
Document adapters_document(const std::string& path, const std::vector<CheckpointReport>& adapters, const Notes& notes);

}  // namespace reshard::cli
