#pragma once

#include <filesystem>
#include <string>

#include "reshard/io/storage.h"
#include "reshard/plan/job.h"

namespace reshard {

// What tells a staging directory (publish.h) from one that somebody else gave such a name: the text of its lock file.

/// The text: that this program has made the directory, and what runs of the job put directly into it.
std::string staging_mark(const Job& job);

/// Why a directory is none that a run of this user has made, as the end of a sentence; empty if it is.
std::string why_not_ours(Storage& storage, const std::filesystem::path& root);

/// The same, and why there is more in it than runs have put there. What lies in folders of runs is not looked at.
std::string why_not_only_ours(Storage& storage, const std::filesystem::path& root);

}  // namespace reshard
