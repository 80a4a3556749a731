#pragma once

#include <memory>
#include <vector>

#include "reshard/layouts/shards.h"
#include "reshard/plan/job.h"

namespace reshard {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterSafetensorsFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterPytorchFile = "adapter_model.bin";

/// The adapters that `plan_consolidate` shall put together: those of find_adapter_folders, if `path` holds no shards of a
/// model; else none.
std::vector<AdapterFolder> adapters_to_consolidate(const std::filesystem::path& path);

/// What to tell somebody who consolidates the model in `path` while adapters lie beside it; empty if none do.
std::string note_of_adapters_left(const std::filesystem::path& path);

/// Sharded adapters into PEFT's directories: a single one into the output directory, of several `adapter_default` there
/// and `adapter_NAME` into NAME. Without an output directory they go beside what they are made of.
/// \throws as plan_consolidate.
std::unique_ptr<Job> plan_consolidate_adapters(const ConsolidateRequest& request,
                                               const std::vector<AdapterFolder>& adapters);

}  // namespace reshard
