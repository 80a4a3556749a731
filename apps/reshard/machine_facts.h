#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "json_report.h"
#include "mpi_ranks.h"

namespace reshard::cli {

/// Kernel, C library, CPU and the instruction set that kernels use.
/// \throws Error kUsage if RESHARD_SIMD names none.
Document machine_facts();

/// Limits of this process: open files, file size, memory. null is unlimited.
Document limit_facts();

/// The launcher that started this process, and where plug-ins are looked for. `open` is null in a build without MPI.
Document mpi_facts(const Environment& environment, OpenPlugin* open);

/// Returns the least memory limit of this process's control group and the groups that contain it (version 1 or 2);
/// std::nullopt if no group has a limit. Tests replace `root`, below which proc and sys are mounted.
std::optional<std::uint64_t> memory_cgroup_bytes(const std::filesystem::path& root = "/");

}  // namespace reshard::cli
