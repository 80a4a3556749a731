// Reads NxD Inference's rank files: which model, which form and which kernels they are of.
#pragma once

#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

inline constexpr LayoutOption kFusedModel{.name = "fused-model",
                                          .type = LayoutOption::Type::kChoice,
                                          .help = "",
                                          .choices = kModels,
                                          .default_value = "target",
                                          .of_source = true,
                                          .source_help = "Which of the models of a fused speculation to read",
                                          .only_of_source = true};

/// Explains the tensors of `shards` to the reader of rank files; see RankFormat::explain.
void explain_nxdi(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// Whether tensors have NxD Inference's names.
bool is_nxdi(const std::vector<TensorEntry>& tensors);

}  // namespace reshard
