#pragma once

#include <cstdint>
#include <string>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/rules/rank_rules.h"

namespace reshard {

/// Returns how `tp` ranks of NxD Inference share the parameters of `model`, which is borrowed, with the settings in
/// `form`.
/// \throws Error kUsage if the ranks cannot share them so.
RankShares nxdi_shares(const Model& model, const OptionValues& form, std::uint32_t tp, HeadCounts heads);

/// \throws Error kUsage.
[[noreturn]] void fail_degree(const std::string& problem, const std::string& hint);

}  // namespace reshard
