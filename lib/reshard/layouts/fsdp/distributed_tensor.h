// Tensors of torch.distributed in a rank's torch.save file: DTensor (torch/distributed/tensor/_api.py,
// _dtensor_spec.py, placement_types.py, device_mesh.py and _mesh_layout.py of torch 2.2 to 2.14) and ShardedTensor
// (torch/distributed/_shard/sharded_tensor/api.py of 1.13 to 2.14). Their pickles record which part of the tensor the
// rank owns. The pickles are parsed as data; no code in them runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// The placement of a tensor along one dim of a mesh of ranks.
struct MeshPlacement {
  enum class Kind : std::uint8_t {
    kReplicate,
    kShard,         // torch.chunk along `dim`
    kStridedShard,  // torch.chunk of each of `split_factor` equal parts of the dim
  };
  Kind kind = Kind::kReplicate;
  std::uint64_t dim = 0;
  std::uint64_t split_factor = 1;
};

/// A tensor, or a rank's part of one. Entries in `local` have the tensor's name.
struct DistributedTensor {
  enum class Kind : std::uint8_t {
    kWhole,    // a plain tensor: local[0]
    kDTensor,  // local[0] is the part of the rank at `coordinate` of a mesh of shape `mesh`
    kSharded,  // local[i] begins at begins[i]
  };
  std::string name;
  Kind kind = Kind::kWhole;
  DType dtype;
  Dims shape;  // shape of the logical tensor
  std::vector<TensorEntry> local;
  std::vector<Dims> begins;
  Dims mesh;
  Dims coordinate;
  std::vector<MeshPlacement> placements;  // one per dim of the mesh
};

/// The tensors in a rank's file. Invariant: names are unique. A tensor has one coordinate and one placement per dim of
/// its mesh, the coordinates are inside the mesh, and all parts are inside the shape and have the tensor's dtype.
struct RankTensors {
  ContainerFile file;
  std::vector<DistributedTensor> tensors;
  std::vector<std::string> warnings;  // see Container::warnings
};

/// Reads the headers of a rank's file.
/// \param rank  The number in the file's name, which meshes must contain.
/// \throws Error kBadInput or kUnsupported, naming the file and the tensor; as read_torch_file; kIo.
RankTensors read_rank_tensors(Files& files, const std::filesystem::path& path, std::uint64_t rank);

}  // namespace reshard
