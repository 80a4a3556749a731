#pragma once

#include <vector>

#include "reshard/layouts/fsdp/distributed_tensor.h"
#include "reshard/tensor/values/box.h"

namespace reshard {

/// A box of a tensor that a rank has, and where it begins in the rank's part.
struct LocalBox {
  Box box;
  Dims begin;
};

/// What the placements of a DTensor leave its rank: each dim of the mesh takes its share of what those before it left
/// (torch/distributed/tensor/placement_types.py: _split_tensor). Empty where nothing is left.
/// \throws Error kUnsupported for a strided shard that does not divide evenly, which versions of torch cut differently.
std::vector<LocalBox> boxes_of_placements(const DistributedTensor& tensor);

}  // namespace reshard
