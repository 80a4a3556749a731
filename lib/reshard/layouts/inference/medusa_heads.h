#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/layouts/ranks/sharded_map.h"

namespace reshard {

inline constexpr LayoutOption kMedusaCount{.name = "num-medusa-heads",
                                           .type = LayoutOption::Type::kCount,
                                           .help = "Number of Medusa's heads (default: as many as the file contains)",
                                           .role = kMedusaRoles[1]};

/// Plans the heads of Medusa for the model of `context`, whose `logical` are the tensors of medusa_heads.pt. A last
/// linear is split like the model's own head; all other tensors are whole on each rank.
/// \param marker  part of the names of all tensors of heads.
/// \throws Error kBadInput if the tensors are no heads of this model; kUsage if the ranks do not divide the vocabulary.
void plan_medusa_heads(TargetPlan& plan, const RankTarget& target, const OptionValues& values,
                       const TargetContext& context, const std::string& marker);

}  // namespace reshard
