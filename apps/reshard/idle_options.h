#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "command.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Returns notes on options of a parsed command that have no effect on `job`. The plan adds those on layout options
/// (LayoutOption::why_idle).
Notes idle_options(const Command& command, const Job& job);

/// The same for replica options, when checkpoints are compared.
Notes idle_replica_options(const Command& command, std::initializer_list<const SourceMap*> sides);

/// Validates that the command was given only `allowed` options and those on how the program runs and prints.
/// \param with  the option or input that makes other options ineffective, such as "--print-family".
/// \throws Error kUsage.
void validate_alone(const Command& command, std::initializer_list<const char*> allowed, const std::string& with);

}  // namespace reshard::cli
