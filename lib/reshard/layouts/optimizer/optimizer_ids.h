// Optimizers whose ids stay ids, as nobody says which parameters they are: some were frozen, or the training code groups
// them by a rule of its own. Where the model's ranks stay as they are, data-parallel ranks may change all the same.
#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"

namespace reshard {

/// Whether `values` ask for that (kSourceOptimizerGroups).
bool keeps_ids(const OptionValues& values);

/// The ids as names, [pp_rank]. Some of `parameters` of each pipeline rank ([pp_rank], as of name_entries) have the shapes
/// of its ids: that much is known.
/// \throws Error kUnsupported for expert-parallel ranks, files that have names, an optimizer that is not ZeRO-1's, master
///         weights of which some are lost, and an id whose shape no file says; kBadInput, naming the file, an id and the
///         numbers, for more ids of a shape than the model has parameters.
std::vector<std::vector<std::string>> names_by_id(const OptimizerFiles& files,
                                                  const std::vector<std::vector<LocalParameter>>& parameters);

/// The local tensors that ids are of, as if a model held them: tensor "3" of each tensor- and pipeline-parallel rank, of
/// the shape that the optimizer's files give it, is the logical tensor "tp_rank_00_pp_rank_01.3". Names nothing in files.
/// `files` have passed names_by_id.
SourceMap local_tensors_by_id(const OptimizerFiles& files);

/// `target` holds the model on the same ranks as `source`, so that ids are of the same local tensors.
/// \throws Error kUsage, naming the rank and the tensor.
void validate_same_ranks(const SourceMap& source, const TargetMap& target);

}  // namespace reshard
