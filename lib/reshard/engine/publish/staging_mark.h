#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// A file that identifies a staging directory (publish.h) of this program. Separate from the lock file, which is empty
/// so that nothing is lost with it.
inline constexpr std::string_view kMarkFile = ".mark";

/// Text of kMarkFile: states that this program created the directory, and lists the paths of all outputs of the job.
std::string staging_mark(const Job& job);

/// Whether a directory has the mark of this job.
bool has_mark_of(Storage& storage, const std::filesystem::path& root, const Job& job);

/// Why a directory was not created by a run of this user, as the end of a sentence; empty if it was.
std::string why_not_ours(Storage& storage, const std::filesystem::path& root);

/// The same, or why the directory contains more, at any depth, than runs put there. Without a mark it may contain only
/// an empty lock file: its run was killed before it wrote the mark. If a machine crash has lost the bytes of the mark, it
/// may contain the outputs of `job`, which writes to the same directory.
std::string why_not_only_ours(Storage& storage, const std::filesystem::path& root, const Job& job);

}  // namespace reshard
