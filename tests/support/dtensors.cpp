#include "support/dtensors.h"

#include "support/pickles.h"

namespace reshard::test {
namespace {

using namespace pickles;

std::vector<std::int64_t> signed_of(const Dims& dims) {
  return {dims.begin(), dims.end()};
}

std::string pickled_placement(const TestPlacement& placement, const std::string& module) {
  const std::string types = module + ".placement_types";
  const std::string dim = number(static_cast<std::int64_t>(placement.dim));
  switch (placement.kind) {
    case 'S': return object(types, "Shard", dict({{"dim", dim}}));
    case 'T':
      return object(types, "_StridedShard",
                    dict({{"dim", dim}, {"split_factor", number(static_cast<std::int64_t>(placement.split_factor))}}));
    case 'P': return object(types, "Partial", dict({{"reduce_op", text("sum")}}));
    default: return global(types, "Replicate") + ")\x81";
  }
}

std::string pickled_mesh(SavedFile& file, const TestMesh& mesh, const Dims& coordinate, TorchVersion version) {
  std::vector<std::int64_t> ranks;
  std::string bytes;
  for (std::uint64_t i = 0; i < num_elems(mesh.shape); ++i) {
    ranks.push_back(static_cast<std::int64_t>(mesh.first_rank + i));
    bytes += le_bytes(static_cast<std::uint32_t>(mesh.first_rank + i));
  }
  std::vector<std::pair<std::string, std::string>> state;
  if (version == TorchVersion::k210) {
    const std::string layout = object(
        "torch.distributed._mesh_layout", "_MeshLayout",
        dict({{"shape", numbers(signed_of(mesh.shape))}, {"stride", numbers(signed_of(c_strides(mesh.shape)))}}));
    state = {{"_device_type", text("cuda")}, {"_layout", layout}, {"_flatten_rank_map", numbers(ranks)}};
  } else {
    std::vector<std::string> own;
    for (const std::int64_t at : signed_of(coordinate)) own.push_back(number(at));
    state = {{"device_type", text("cuda")},
             {"mesh", file.tensor({DType::kF32, mesh.shape, bytes})},  // of int32, as many bytes
             {"_flatten_mesh_list", numbers(ranks)},
             {"_coordinate_on_dim", list(own)}};
  }
  return object("torch.distributed.device_mesh", "DeviceMesh", dict(state));
}

}  // namespace

std::string pickled_dtensor(SavedFile& file, const TensorData& local, const Dims& shape, const TestMesh& mesh,
                            const Dims& coordinate, const std::vector<TestPlacement>& placements,
                            TorchVersion version) {
  const bool old = version == TorchVersion::k22;
  const std::string module = old ? "torch.distributed._tensor" : "torch.distributed.tensor";
  const std::string type = old ? global("torch.distributed._tensor.api", "DTensor") : global(module, "DTensor");
  std::vector<std::string> placed;
  for (const TestPlacement& placement : placements) placed.push_back(pickled_placement(placement, module));
  const std::string spec = object(old ? module + ".placement_types" : module + "._dtensor_spec", "DTensorSpec",
                                  dict({{"mesh", pickled_mesh(file, mesh, coordinate, version)},
                                        {"placements", tuple(placed)},
                                        {"tensor_meta", kNone}}));
  const std::string slots = dict({{"_local_tensor", file.tensor(local)}, {"_spec", spec}});
  const std::string args = tuple({type, global("torch", "float32"), pickled_size(shape), numbers({}), number(0)});
  return call(
      "torch._tensor", "_rebuild_from_type_v2",
      {global("torch._utils", "_rebuild_wrapper_subclass"), type, args, old ? tuple({dict({}), slots}) : slots});
}

}  // namespace reshard::test
