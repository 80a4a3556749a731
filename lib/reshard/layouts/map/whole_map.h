#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

std::size_t number_of_tensors(const std::vector<Container>& files);

/// Returns the tensor map of files in which every stored tensor is one logical tensor.
SourceMap whole_map(const std::vector<Container>& files);

/// Returns the parameters that share another's bytes in this model. Without a model, returns the pair that may be tied
/// in all known families; only their bytes show whether they are.
std::vector<TiedParameter> tied_parameters(const std::optional<Model>& model);

/// Returns the parameters that may share another's bytes, whether or not they do in this model.
std::vector<TiedParameter> possible_ties(const std::optional<Model>& model);

}  // namespace reshard
