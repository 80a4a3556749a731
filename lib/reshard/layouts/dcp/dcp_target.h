#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// How a checkpoint of torch.distributed.checkpoint is cut. torch loads it into any other mesh.
struct DcpCut {
  std::uint32_t fsdp = 1;  // ranks over which rows are spread, as FSDP2 does
  std::uint32_t tp = 1;    // tensor-parallel ranks of each of these
  std::string prefix;      // of all names: empty, or parts that end in dots ("model.")
  std::string names;       // of another program, as of WrittenNames; empty: the model's own
};

/// The map and `.metadata` of a checkpoint with a file for each rank (i, j) of the mesh `fsdp` × `tp`: along a dim of n
/// elements each part has ceil(n / parts), the last ones less or none (torch.chunk, as DTensor's Shard has it). Where a
/// dim is split twice, tensor parallelism comes first. What several ranks would have is in the file of one of them.
/// Where another program packs tensors, or has rows in another order, the parts are of what that program has.
/// \param states  go along, and are called, ordered and cut as their parameters where they have their shape; null for
///        none. Of others, such as counts of steps, a packed entry has one (TargetMap::same).
/// \param model  says which dims tensor-parallel ranks split, and which names are tied; without it, none are.
/// \param notes  gets what the user should know, whole sentences; null if nobody wants it.
/// \throws Error kUsage for more `tp` than 1, or names of another program, without a model, and where a
///         parameter has the name of another entry, or would not be read under its own; as WrittenNames; kUnsupported for a dtype
///         that torch does not have, and for states that cannot follow their parameters to another program.
TargetMap dcp_target_map(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                         const DcpCut& cut, std::vector<std::string>* notes = nullptr);

}  // namespace reshard
