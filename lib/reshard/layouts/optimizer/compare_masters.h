#pragma once

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/optimizer_states.h"

namespace reshard {

/// After each step an optimizer's master weights, rounded up or down, are the model's weights. Neither the optimizer's files nor their
/// names say of which save they are, or prove which rank's or parameter's: so the first elements of some master weights of
/// each file, and of each local parameter on some data-parallel rank, are compared with those of the model's files in
/// `model`.
/// \throws Error kBadInput, naming the file, the id and both values, where they differ: files of ranks were swapped, or
///         the optimizer and the model are of two saves; kIo.
void compare_masters(Files& files, const ShardedOptimizer& optimizer, const TensorMap& model);

}  // namespace reshard
