#pragma once

#include <filesystem>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Leaves out copied files that are links to outside the model, and notes their names.
/// \param adapters  further directories that the user gave.
/// \throws Error kBadInput if config.json or an adapter's configuration is such a link, whether it is copied or
/// changed; kIo.
void leave_out_outside_links(Files& files, Job& job, const SourceRequest& request,
                             const std::vector<std::filesystem::path>& adapters = {});

}  // namespace reshard
