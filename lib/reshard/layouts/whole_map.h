#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "reshard/formats/container.h"
#include "reshard/layouts/tensor_map.h"
#include "reshard/specs/model.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {

std::size_t number_of_tensors(const std::vector<Container>& files);

/// The tensor map of files in which every stored tensor is one original tensor. A tensor named in `tied` is a replica
/// of another where the files hold both.
TensorMap whole_map(const std::vector<Container>& files, const std::vector<TiedParameter>& tied = {});

/// The parameters that share another's bytes in this model. Without a model, the pair that may be tied in all families
/// known so far: their bytes are compared, so that a wrong guess is an error and not a loss.
std::vector<TiedParameter> tied_parameters(const std::optional<Model>& model);

}  // namespace reshard
