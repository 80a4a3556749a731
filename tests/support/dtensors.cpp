#include "support/dtensors.h"

#include <map>
#include <numeric>

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

/// Sizes and strides of a dim of a mesh, of the dims that it was made of.
struct Axis {
  Dims sizes, strides;
};

std::vector<Axis> axes_of(const TestMesh& mesh) {
  std::vector<Axis> axes;
  const Dims root_strides = c_strides(mesh.root), strides = c_strides(mesh.shape);
  for (std::size_t d = 0; d < mesh.shape.size(); ++d) {
    Axis& axis = axes.emplace_back();
    if (mesh.made_of.empty()) axis = {{mesh.shape[d]}, {strides[d]}};
    for (const std::size_t from : mesh.made_of.empty() ? std::vector<std::size_t>() : mesh.made_of[d]) {
      axis.sizes.push_back(mesh.root[from]);
      axis.strides.push_back(root_strides[from]);
    }
  }
  return axes;
}

/// One of 2.10: its shape, and its strides.
std::string pickled_layout(const std::vector<Axis>& axes) {
  std::vector<std::string> shape, stride;
  for (const Axis& axis : axes) {
    const bool nested = axis.sizes.size() > 1;
    shape.push_back(nested ? numbers(signed_of(axis.sizes)) : number(static_cast<std::int64_t>(axis.sizes[0])));
    stride.push_back(nested ? numbers(signed_of(axis.strides)) : number(static_cast<std::int64_t>(axis.strides[0])));
  }
  return object("torch.distributed._mesh_layout", "_MeshLayout",
                dict({{"shape", tuple(shape)}, {"stride", tuple(stride)}}));
}

/// One of 2.13: an object for each dim, without numbers for a dim of one rank.
std::string pickled_axes(const std::vector<Axis>& axes) {
  std::vector<std::string> pickled;
  for (const Axis& axis : axes) {
    const bool is_one = num_elems(axis.sizes) == 1;
    pickled.push_back(
        object("torch.distributed._mesh_layout", "_FlatLayout",
               dict({{"shape", numbers(is_one ? std::vector<std::int64_t>() : signed_of(axis.sizes))},
                     {"stride", numbers(is_one ? std::vector<std::int64_t>() : signed_of(axis.strides))}})));
  }
  return object("torch.distributed._mesh_layout", "_MeshLayout", dict({{"axes", tuple(pickled)}}));
}

/// The ranks in the order of their coordinates.
std::vector<std::int64_t> ranks_of(const TestMesh& mesh) {
  std::map<Dims, std::int64_t> ranks;
  for (std::uint64_t i = 0; i < num_elems(mesh.shape).value(); ++i)
    ranks[coordinate_in(mesh, mesh.first_rank + i)] = static_cast<std::int64_t>(mesh.first_rank + i);
  std::vector<std::int64_t> ordered;
  for (const auto& [coordinate, rank] : ranks) ordered.push_back(rank);
  return ordered;
}

std::string pickled_mesh(SavedFile& file, const TestMesh& mesh, const Dims& coordinate, TorchVersion version) {
  std::vector<std::pair<std::string, std::string>> state;
  const std::vector<std::int64_t> ranks = ranks_of(mesh);
  if (version == TorchVersion::k210 || version == TorchVersion::k213) {
    std::vector<std::int64_t> map(ranks.size());
    std::iota(map.begin(), map.end(), static_cast<std::int64_t>(mesh.first_rank));
    const std::vector<Axis> axes = axes_of(mesh);
    state = {{"_device_type", text("cuda")},
             {"_layout", version == TorchVersion::k210 ? pickled_layout(axes) : pickled_axes(axes)},
             {"_flatten_rank_map", numbers(map)}};
    if (version == TorchVersion::k213) state.emplace_back("_coordinate_on_dim", numbers(signed_of(coordinate)));
  } else {
    std::string bytes;
    for (const std::int64_t rank : ranks) bytes += le_bytes(static_cast<std::uint32_t>(rank));
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

Dims coordinate_in(const TestMesh& mesh, std::uint64_t rank) {
  Dims coordinate;
  for (const Axis& axis : axes_of(mesh)) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < axis.sizes.size(); ++i)
      at = at * axis.sizes[i] + (rank - mesh.first_rank) / axis.strides[i] % axis.sizes[i];
    coordinate.push_back(at);
  }
  return coordinate;
}

std::string pickled_dtensor(SavedFile& file, const TensorData& local, const Dims& shape, const TestMesh& mesh,
                            const Dims& coordinate, const std::vector<TestPlacement>& placements,
                            TorchVersion version) {
  const bool old = version == TorchVersion::k22;
  const std::string module = old ? "torch.distributed._tensor" : "torch.distributed.tensor";
  const std::string type = old ? global("torch.distributed._tensor.api", "DTensor") : global(module, "DTensor");
  std::vector<std::string> placed;
  for (const TestPlacement& placement : placements) placed.push_back(pickled_placement(placement, module));
  std::vector<std::pair<std::string, std::string>> fields{
      {"mesh", pickled_mesh(file, mesh, coordinate, version)}, {"placements", tuple(placed)}, {"tensor_meta", kNone}};
  if (version == TorchVersion::k213)
    fields.emplace_back("shard_order", tuple({object(module + "._dtensor_spec", "ShardOrderEntry", dict({}))}));
  const std::string spec =
      object(old ? module + ".placement_types" : module + "._dtensor_spec", "DTensorSpec", dict(fields));
  const std::string slots = dict({{"_local_tensor", file.tensor(local)}, {"_spec", spec}});
  const std::string args = tuple({type, global("torch", "float32"), pickled_size(shape), numbers({}), number(0)});
  return call(
      "torch._tensor", "_rebuild_from_type_v2",
      {global("torch._utils", "_rebuild_wrapper_subclass"), type, args, old ? tuple({dict({}), slots}) : slots});
}

}  // namespace reshard::test
