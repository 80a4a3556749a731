#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/plan/job/job.h"

namespace reshard::test {

/// Returns the pairs of notes that cannot both be true of a tensor or a file, such as left out and padded.
std::vector<std::string> contradictions(const Notes& notes);

/// \throws std::logic_error if the notes of a plan contradict each other or the plan: it writes a tensor, or reads or
/// copies a file, that a note calls left out.
std::unique_ptr<Job> with_checked_notes(std::unique_ptr<Job> job);

/// Returns the notes that a program printed twice.
std::vector<std::string> repeated_notes(const std::string& printed);

}  // namespace reshard::test
