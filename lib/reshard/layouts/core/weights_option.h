#pragma once

#include "reshard/layouts/core/layout.h"

namespace reshard {

inline constexpr const char* kWeightsChoices[] = {"model", "master"};

/// Selects the weights to read from a training checkpoint: the model's own, or the optimizer's master weights.
inline constexpr LayoutOption kWeights{.name = "weights",
                                       .type = LayoutOption::Type::kChoice,
                                       .help = "Which weights to read",
                                       .choices = kWeightsChoices,
                                       .of_source = true,
                                       .source_help =
                                           "Which weights to read: model, in the dtype that the model was trained in, "
                                           "or master, the optimizer's fp32 weights",
                                       .only_of_source = true};

/// Whether `values` selects the optimizer's master weights.
inline bool wants_master_weights(const OptionValues& values) {
  return values.choice(kWeights) == "master";
}

}  // namespace reshard
