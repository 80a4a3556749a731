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

/// The tensor map of files in which every stored tensor is one original tensor.
SourceMap whole_map(const std::vector<Container>& files);

/// The parameters that share another's bytes in this model. Without a model, the pair that may be tied in all families
/// known so far: only their bytes show whether it is.
std::vector<TiedParameter> tied_parameters(const std::optional<Model>& model);

/// The parameters that may share another's bytes, whether they do in this model or not.
std::vector<TiedParameter> possible_ties(const std::optional<Model>& model);

}  // namespace reshard
