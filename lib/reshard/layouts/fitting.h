#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/container.h"
#include "reshard/layouts/tensor_map.h"
#include "reshard/specs/family.h"
#include "reshard/specs/model_config.h"

namespace reshard {

/// What of the tensors is not as the model says, a line each, at most `most`: tensors of another shape, tensors that
/// the model does not name, with the nearest name, and tensors that it needs. Of several layers' alike, the first.
std::vector<std::string> misfits(const TensorMap& map, const Model& model, std::size_t most);

/// The built-in families under which every tensor of these files is explained with its shape, and none is missing;
/// sorted. One that stands for another under a second name is left out.
std::vector<std::string> families_that_fit(const ModelConfig& config, const std::vector<Container>& files);

}  // namespace reshard
