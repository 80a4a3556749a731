// Tensors of torch.distributed in a rank's own file of torch.save: DTensor (torch/distributed/tensor/_api.py,
// _dtensor_spec.py, placement_types.py and device_mesh.py of torch 2.2 to 2.9) and ShardedTensor
// (torch/distributed/_shard/sharded_tensor/api.py of 1.13 to 2.9), pickled with what says which part of the whole the
// rank has. The classes are data here; nothing of them runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// What one dim of a mesh of ranks does to a tensor.
struct MeshPlacement {
  enum class Kind : std::uint8_t {
    kReplicate,
    kShard,         // torch.chunk along `dim`
    kStridedShard,  // the same of each of `split_factor` equal parts of the dim
  };
  Kind kind = Kind::kReplicate;
  std::uint64_t dim = 0;
  std::uint64_t split_factor = 1;
};

/// A tensor, or a rank's part of one. `local` entries are named as the tensor is.
struct DistributedTensor {
  enum class Kind : std::uint8_t {
    kWhole,    // a plain tensor: local[0]
    kDTensor,  // local[0] is what `placements` leave the rank at `coordinate` of a mesh of shape `mesh`
    kSharded,  // local[i] begins at begins[i]
  };
  std::string name;
  Kind kind = Kind::kWhole;
  DType dtype;
  Dims shape;  // of all of it
  std::vector<TensorEntry> local;
  std::vector<Dims> begins;
  Dims mesh;
  Dims coordinate;
  std::vector<MeshPlacement> placements;  // one per dim of the mesh
};

/// A rank's file. Invariant: names are unique; what a tensor says of itself fits together: as many coordinates and
/// placements as the mesh has dims, each inside it, parts inside the shape and of its dtype.
struct RankTensors {
  ContainerFile file;
  std::vector<DistributedTensor> tensors;
  std::vector<std::string> warnings;  // as of Container
};

/// \param rank  the number in the file's name: meshes must agree with it.
/// \throws Error kBadInput or kUnsupported, naming the file and the tensor; as read_torch does; kIo.
RankTensors read_rank_tensors(Files& files, const std::filesystem::path& path, std::uint64_t rank);

}  // namespace reshard
