// Optimizers whose parameters keep their ids because their names are unknown: some were frozen, or the training code
// groups them by a rule of its own. The number of data-parallel ranks may change if the model's ranks stay the same.
#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"

namespace reshard {

/// Whether `values` request this (kSourceOptimizerGroups).
bool keeps_ids(const OptionValues& values);

/// Returns the ids as names, [pp_rank]. Validates that `parameters` of each pipeline rank ([pp_rank], see name_entries)
/// include the shapes of its ids.
/// \throws Error kUnsupported for expert-parallel ranks, files that have names, an optimizer that is not ZeRO-1, master
/// weights that are partly lost, and ids whose shape is not recorded; kBadInput, naming the file, an id and the
/// numbers, if there are more ids of a shape than parameters in the model.
std::vector<std::vector<std::string>> names_by_id(const OptimizerFiles& files,
                                                  const std::vector<std::vector<LocalParameter>>& parameters);

/// Returns the local tensors of the ids as if a model contained them: id "3" of each tensor- and pipeline-parallel
/// rank, with the shape in the optimizer's files, is the logical tensor "tp_rank_00_pp_rank_01.3". The map has no file
/// contents. `files` must have passed names_by_id.
SourceMap local_tensors_by_id(const OptimizerFiles& files);

/// Validates that `target` has the model on the same ranks as `source`, so that ids refer to the same local tensors.
/// \throws Error kUsage, naming the rank and the tensor.
void validate_same_ranks(const SourceMap& source, const TargetMap& target);

}  // namespace reshard
