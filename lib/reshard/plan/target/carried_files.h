#pragma once

#include <filesystem>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Whether `config` is the config.json of the output directory, where it stays as it is.
bool is_in_place(Files& files, const std::filesystem::path& config, const std::filesystem::path& output_directory);

/// Takes the other files of a checkpoint's directory along, unless the outputs go into it, and its config.json from
/// wherever it is.
void carry_companions(Files& files, Job& job, const Checkpoint& source,
                      const std::vector<std::filesystem::path>& left_out);

}  // namespace reshard
