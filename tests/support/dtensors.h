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
};

struct TestPlacement {
  char kind = 'R';  // R, S, or T for a strided shard; P for a partial sum
  std::uint64_t dim = 0;
  std::uint64_t split_factor = 1;
};

struct TestMesh {
  Dims shape;
  std::uint64_t first_rank = 0;  // ranks follow one another
};

/// The pickle of `local`, the part of a tensor of `shape` that the rank at `coordinate` has.
std::string pickled_dtensor(SavedFile& file, const TensorData& local, const Dims& shape, const TestMesh& mesh,
                            const Dims& coordinate, const std::vector<TestPlacement>& placements,
                            TorchVersion version = TorchVersion::k26);

}  // namespace reshard::test
