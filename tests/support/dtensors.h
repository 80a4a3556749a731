#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/saved_file.h"

/// DTensors as versions of torch pickle them, by hand.
namespace reshard::test {

/// Which classes and attributes a version has.
enum class TorchVersion {
  k22,   // torch.distributed._tensor, slots beside the dict (torch/_utils.py: _get_obj_state of 2.2)
  k26,   // torch.distributed.tensor
  k210,  // a mesh is a row of ranks and a layout (torch/distributed/device_mesh.py of 2.10)
  k213,  // whose dims are objects (torch/distributed/_mesh_layout.py of 2.13)
};

struct TestPlacement {
  char kind = 'R';  // R, S, or T for a strided shard; P for a partial sum
  std::uint64_t dim = 0;
  std::uint64_t split_factor = 1;
};

struct TestMesh {
  Dims shape;
  std::uint64_t first_rank = 0;  // ranks follow one another
  // A mesh of which dims were flattened: the shape of the first one, and for each dim the dims that it was made of.
  Dims root;
  std::vector<std::vector<std::size_t>> made_of;
};

/// Where a rank is in a mesh.
Dims coordinate_in(const TestMesh& mesh, std::uint64_t rank);

/// The pickle of `local`, the part of a tensor of `shape` that the rank at `coordinate` has.
std::string pickled_dtensor(SavedFile& file, const TensorData& local, const Dims& shape, const TestMesh& mesh,
                            const Dims& coordinate, const std::vector<TestPlacement>& placements,
                            TorchVersion version = TorchVersion::k26);

}  // namespace reshard::test
