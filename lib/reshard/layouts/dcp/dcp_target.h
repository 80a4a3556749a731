#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// How a torch.distributed.checkpoint is sharded. torch loads it into any mesh.
struct DcpCut {
  std::uint32_t fsdp = 1;  // ranks that rows are sharded over, as in FSDP2
  std::uint32_t tp = 1;    // tensor-parallel ranks per FSDP rank
  std::string prefix;      // prefix of all names, ending in a dot ("model."); may be empty
  std::string names;       // program whose names are written (WrittenNames); empty: the model's own names
};

/// Returns the map and `.metadata` of a checkpoint with one file per rank (i, j) of the mesh `fsdp` × `tp`. Dims are
/// split into parts of ceil(size / parts) elements; the last parts have fewer or none (torch.chunk, as in DTensor's
/// Shard). If both axes split the same dim, tensor parallelism splits it first. A replicated box is stored in only one
/// rank's file. If another program packs or reorders tensors, its entries are split instead.
/// \param states  Training states to include; may be null. States with the shape of their parameter are named, ordered
///        and split like it. Of other states, such as step counts, a packed entry stores one (TargetMap::same).
/// \param model  Determines the dims that tensor-parallel ranks split, and tied names; may be null.
/// \param notes  May be null.
/// \throws Error kUsage if `tp` is more than 1 or `names` is not empty without a model, if a parameter has the name of
///         another entry, or if it would not be read back under its own name; as WrittenNames. kUnsupported for a dtype
///         that torch does not support, and for states that cannot follow their parameters to another program.
TargetMap dcp_target_map(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                         const DcpCut& cut, Notes* notes = nullptr);

}  // namespace reshard
