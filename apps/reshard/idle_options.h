#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "command.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Notes on options of a command that was parsed and that have no effect on `job`. Options of layouts have theirs from
/// the plan (LayoutOption::why_idle).
std::vector<std::string> idle_options(const Command& command, const Job& job);

/// The same of options on replicas, for checkpoints that are compared.
std::vector<std::string> idle_replica_options(const Command& command, std::initializer_list<const SourceMap*> sides);

/// Validates that the command was given no option but `allowed` and those on how the program runs and prints.
/// \param with  the option or input next to which any other option has no effect, such as "--print-family".
/// \throws Error kUsage.
void validate_alone(const Command& command, std::initializer_list<const char*> allowed, const std::string& with);

}  // namespace reshard::cli
