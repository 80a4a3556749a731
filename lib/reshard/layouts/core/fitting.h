#pragma once

#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {

/// The built-in families under which every tensor of these files is explained with its shape, and none is missing. One
/// that stands for another under a second name is left out. First come those that config.json's model_type or class
/// has in its name, then those that most others are like.
std::vector<std::string> families_that_fit(const ModelConfig& config, const std::vector<Container>& files);

}  // namespace reshard
