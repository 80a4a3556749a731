#include "reshard/layouts/fsdp/distributed_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/torch_storage.h"
#include "reshard/tensor/values/box.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDistributed = "torch.distributed.";
constexpr std::size_t kMostMeshDims = 8;
constexpr std::size_t kMostRanks = std::size_t{1} << 20;
constexpr std::size_t kMaxAttributes = 256;  // per object; many tensors may search one object for each field

/// State shared by the tensors of one file. A million tensors may refer to the same list of ranks or shards.
struct SharedParts {
  std::uint64_t rank;                                   // the rank in the file's name
  std::unordered_map<PickleRef, std::uint64_t> places;  // index of `rank` in each list of ranks
  std::size_t parts = 0;                                // number of shards of all tensors
};

/// A dim of a mesh. A flattened dim has the sizes and strides of several, the first varying slowest.
struct MeshDim {
  Dims sizes;
  Dims strides;  // in the mesh's list of ranks
};

/// Reads one tensor of a rank's file.
class TensorParts {
 public:
  TensorParts(const TorchFile& file, const std::string& name, SharedParts& shared)
      : file_(file), pickle_(file.pickle()), name_(name), shared_(shared) {}

  DistributedTensor read(PickleRef node) const {
    const PickleRef wrapped = distributed(node);
    if (wrapped == kNoNode) {
      DistributedTensor tensor{name_, DistributedTensor::Kind::kWhole, DType::kF32, {}, {}, {}, {}, {}, {}};
      tensor.local.push_back(file_.tensor(node, name_));
      tensor.dtype = tensor.local[0].dtype;
      tensor.shape = tensor.local[0].shape;
      return tensor;
    }
    const auto fields = pickle_.items(pickle_.args(node));
    if (fields.size() != 4 || pickle_.items(fields[2]).size() < 3)
      throw bad("is rebuilt from its type with other arguments than torch uses");
    DistributedTensor tensor = pickle_.global(wrapped).name == "DTensor" ? dtensor(fields[3]) : sharded(fields[3]);
    const auto shape = read_size(pickle_, pickle_.items(fields[2])[2]);
    if (!shape) throw bad("its size is " + pickle_.describe(pickle_.items(fields[2])[2]));
    tensor.shape = *shape;
    if (!num_elems(tensor.shape)) throw bad("its elements overflow 64 bits");
    validate(tensor);
    return tensor;
  }

 private:
  Error bad(std::string message) const {
    return Error(ErrorKind::kBadInput, std::move(message)).in(file_.path()).tensor(name_);
  }
  Error unsupported(std::string message) const {
    return Error(ErrorKind::kUnsupported, std::move(message)).in(file_.path()).tensor(name_);
  }

  /// Returns the class of `node` if it is a DTensor or ShardedTensor; kNoNode for another tensor.
  PickleRef distributed(PickleRef node) const {
    const PickleGlobal callee = pickle_.global(pickle_.callee(node));
    if (callee.module != "torch._tensor" || callee.name != "_rebuild_from_type_v2") return kNoNode;
    const auto fields = pickle_.items(pickle_.args(node));
    if (fields.size() < 2 || pickle_.kind(fields[1]) != PickleKind::kGlobal) return kNoNode;
    return is_class(fields[1], "DTensor") || is_class(fields[1], "ShardedTensor") ? fields[1] : kNoNode;
  }

  bool is_class(PickleRef node, std::string_view name) const {
    if (node == kNoNode || pickle_.kind(node) != PickleKind::kGlobal) return false;
    const PickleGlobal global = pickle_.global(node);
    return global.name == name && global.module.starts_with(kDistributed);
  }
  bool is_object(PickleRef node, std::string_view name) const {
    return node != kNoNode && pickle_.kind(node) == PickleKind::kObject && is_class(pickle_.callee(node), name);
  }

  /// Returns the value of `key` in an object's state, which is a pair of dicts for classes with slots; kNoNode if
  /// absent.
  PickleRef field(PickleRef state, std::string_view key) const {
    if (state == kNoNode) return kNoNode;
    std::vector<PickleRef> dicts{state};
    if (pickle_.kind(state) == PickleKind::kTuple)
      dicts.assign(pickle_.items(state).begin(), pickle_.items(state).end());
    if (dicts.size() > 2) return kNoNode;
    for (const PickleRef dict : dicts) {
      const auto attributes = pickle_.pairs(dict);
      if (attributes.size() > kMaxAttributes)
        throw bad(fmt::format("has an object with {} attributes, more than torch ever writes", attributes.size()));
      const PickleRef found = value_of(pickle_, attributes, key, file_.path());
      if (found != kNoNode) return found;
    }
    return kNoNode;
  }
  PickleRef need(PickleRef state, const char* key) const {
    const PickleRef found = field(state, key);
    if (found == kNoNode) throw unsupported(fmt::format("has no \"{}\": this version of torch is not supported", key));
    return found;
  }
  Dims size(PickleRef node, const char* what) const {
    const auto size = node == kNoNode ? std::nullopt : read_size(pickle_, node);
    if (!size) throw bad(fmt::format("its {} is {}", what, node == kNoNode ? "missing" : pickle_.describe(node)));
    return *size;
  }

  DistributedTensor dtensor(PickleRef state) const;
  DistributedTensor sharded(PickleRef state) const;
  void read_mesh(PickleRef mesh, DistributedTensor& tensor) const;
  std::uint64_t place_in(PickleRef ranks) const;
  std::vector<MeshDim> mesh_dims(PickleRef layout) const;
  Dims coordinate_in(const std::vector<MeshDim>& mesh, PickleRef ranks) const;
  MeshPlacement placement(PickleRef node) const;
  void validate(const DistributedTensor& tensor) const;

  const TorchFile& file_;
  const Pickle& pickle_;
  const std::string& name_;
  SharedParts& shared_;
};

DistributedTensor TensorParts::dtensor(PickleRef state) const {
  DistributedTensor tensor{name_, DistributedTensor::Kind::kDTensor, DType::kF32, {}, {}, {}, {}, {}, {}};
  tensor.local.push_back(file_.tensor(need(state, "_local_tensor"), name_));
  tensor.dtype = tensor.local[0].dtype;
  const PickleRef spec = pickle_.state(need(state, "_spec"));
  read_mesh(need(spec, "mesh"), tensor);
  for (const PickleRef one : pickle_.items(need(spec, "placements"))) {
    if (tensor.placements.size() == tensor.mesh.size()) throw bad("has more placements than its mesh has dims");
    tensor.placements.push_back(placement(one));
  }
  return tensor;
}

/// Reads the mesh and the rank's coordinate. Until torch 2.9, a mesh stores a tensor of ranks with the mesh's shape,
/// the same ranks as a tuple, and the coordinate of the saving rank. Later versions store a flat list of ranks, and
/// the sizes and strides of the mesh's dims in it.
void TensorParts::read_mesh(PickleRef node, DistributedTensor& tensor) const {
  if (!is_object(node, "DeviceMesh")) throw bad("has " + pickle_.describe(node) + " instead of a mesh");
  const PickleRef state = pickle_.state(node);
  std::vector<MeshDim> mesh;
  PickleRef ranks = field(state, "_flatten_mesh_list");
  if (const PickleRef of_ranks = field(state, "mesh"); of_ranks != kNoNode) {
    const Dims shape = file_.tensor(of_ranks, name_).shape;
    const Dims strides = c_strides(shape);
    for (std::size_t d = 0; d < shape.size(); ++d) mesh.push_back({{shape[d]}, {strides[d]}});
  } else {
    const PickleRef layout = pickle_.state(need(state, "_layout"));
    mesh = mesh_dims(layout);
    ranks = field(state, "_flatten_rank_map");
  }
  std::optional<std::uint64_t> count = 1;
  for (const MeshDim& dim : mesh) {
    const auto size = num_elems(dim.sizes);
    if (dim.sizes.size() != dim.strides.size()) throw bad("has a mesh with another number of strides than of dims");
    tensor.mesh.push_back(size.value_or(0));
    count = count && size ? checked_mul(*count, *size) : std::nullopt;
  }
  if (mesh.size() > kMostMeshDims || !count || *count == 0 || *count > kMostRanks)
    throw bad("has a mesh of shape " + to_string(tensor.mesh));
  const PickleRef said = field(state, "_coordinate_on_dim");
  if (said == kNoNode && ranks == kNoNode) throw unsupported("does not record its rank in the mesh");
  if (ranks != kNoNode) tensor.coordinate = coordinate_in(mesh, ranks);
  if (said == kNoNode) return;
  const Dims coordinate = size(said, "coordinate in the mesh");
  if (ranks != kNoNode && coordinate != tensor.coordinate)
    throw bad(fmt::format("belongs to the rank at {} of its mesh, but rank {}, which the file is named after, is at {}",
                          to_string(coordinate), shared_.rank, to_string(tensor.coordinate)))
        .hint("rank files were renamed or swapped");
  tensor.coordinate = coordinate;
}

/// Returns the index in the list `ranks` of the rank in the file's name.
std::uint64_t TensorParts::place_in(PickleRef ranks) const {
  if (const auto known = shared_.places.find(ranks); known != shared_.places.end()) return known->second;
  const auto items = pickle_.items(ranks);
  const auto found = std::find_if(items.begin(), items.end(), [&](PickleRef item) {
    return pickle_.kind(item) == PickleKind::kInt && pickle_.integer(item) >= 0 &&
           static_cast<std::uint64_t>(pickle_.integer(item)) == shared_.rank;
  });
  if (found == items.end())
    throw bad(fmt::format("its mesh does not have rank {}, which the file is named after", shared_.rank))
        .hint("rank files were renamed or swapped");
  return shared_.places[ranks] = static_cast<std::uint64_t>(found - items.begin());
}

Dims TensorParts::coordinate_in(const std::vector<MeshDim>& mesh, PickleRef ranks) const {
  const std::uint64_t place = place_in(ranks);
  Dims coordinate(mesh.size());
  for (std::size_t d = 0; d < mesh.size(); ++d)
    for (std::size_t i = 0; i < mesh[d].sizes.size(); ++i) {
      const std::uint64_t size = mesh[d].sizes[i], stride = mesh[d].strides[i];
      coordinate[d] = coordinate[d] * size + (stride == 0 ? 0 : place / stride % size);
    }
  return coordinate;
}

/// Torch 2.10 to 2.12 keep one shape and one stride of all dims, in which a flattened dim is a tuple; later ones an
/// object with both for each dim, which is empty for a dim of one rank.
std::vector<MeshDim> TensorParts::mesh_dims(PickleRef layout) const {
  const auto numbers = [&](PickleRef node) {
    if (pickle_.kind(node) == PickleKind::kInt && pickle_.integer(node) >= 0)
      return Dims{static_cast<std::uint64_t>(pickle_.integer(node))};
    return size(node, "mesh's layout");
  };
  std::vector<MeshDim> dims;
  if (const PickleRef axes = field(layout, "axes"); axes != kNoNode) {
    for (const PickleRef axis : pickle_.items(axes).first(std::min(pickle_.items(axes).size(), kMostMeshDims + 1)))
      dims.push_back({numbers(need(pickle_.state(axis), "shape")), numbers(need(pickle_.state(axis), "stride"))});
    return dims;
  }
  const PickleRef shape = need(layout, "shape"), stride = need(layout, "stride");
  if (pickle_.kind(shape) == PickleKind::kInt) return {{numbers(shape), numbers(stride)}};
  const auto sizes = pickle_.items(shape), strides = pickle_.items(stride);
  if (sizes.size() != strides.size()) throw bad("has a mesh with another number of strides than of dims");
  for (std::size_t d = 0; d < std::min(sizes.size(), kMostMeshDims + 1); ++d)
    dims.push_back({numbers(sizes[d]), numbers(strides[d])});
  return dims;
}

MeshPlacement TensorParts::placement(PickleRef node) const {
  using Kind = MeshPlacement::Kind;
  if (is_object(node, "Replicate")) return {};
  const bool strided = is_object(node, "_StridedShard");
  if (!strided && !is_object(node, "Shard"))
    throw unsupported("is placed as " + pickle_.describe(node) + ", which is not supported")
        .hint("reduce its partial sums before saving the state dict");
  MeshPlacement placement{strided ? Kind::kStridedShard : Kind::kShard};
  const auto number = [&](const char* key) {
    const PickleRef value = field(pickle_.state(node), key);
    if (value == kNoNode || pickle_.kind(value) != PickleKind::kInt || pickle_.integer(value) < 0)
      throw bad(fmt::format("its placement has no number \"{}\"", key));
    return static_cast<std::uint64_t>(pickle_.integer(value));
  };
  placement.dim = number("dim");
  if (strided) placement.split_factor = number("split_factor");
  if (placement.split_factor == 0 || placement.split_factor > kMostRanks)
    throw bad(fmt::format("its placement has a split_factor of {}", placement.split_factor));
  return placement;
}

/// The state is (local shards, metadata, process group, spec, …). Each shard has its tensor, offsets and sizes.
DistributedTensor TensorParts::sharded(PickleRef state) const {
  DistributedTensor tensor{name_, DistributedTensor::Kind::kSharded, DType::kF32, {}, {}, {}, {}, {}, {}};
  const auto parts = pickle_.items(state);
  if (parts.size() < 2 || pickle_.kind(parts[0]) != PickleKind::kList)
    throw unsupported("has no list of local shards: this version of torch is not supported");
  const PickleRef metadata = pickle_.state(parts[1]);
  const PickleRef properties = pickle_.state(need(metadata, "tensor_properties"));
  const auto values = properties == kNoNode ? std::span<const PickleRef>() : pickle_.items(properties);
  const PickleGlobal dtype = values.empty() ? PickleGlobal{} : pickle_.global(values[0]);
  const auto known = dtype_from_torch_name(dtype.name);
  if (!known || dtype.module != "torch") throw bad("does not record its dtype");
  tensor.dtype = *known;
  for (const PickleRef shard : pickle_.items(parts[0])) {
    if (++shared_.parts > pickle_.num_nodes()) throw bad("contains the same shards repeatedly");
    const PickleRef fields = pickle_.state(shard);
    tensor.local.push_back(file_.tensor(need(fields, "tensor"), name_));
    const PickleRef place = pickle_.state(need(fields, "metadata"));
    tensor.begins.push_back(size(field(place, "shard_offsets"), "shard's offsets"));
    if (size(field(place, "shard_sizes"), "shard's sizes") != tensor.local.back().shape)
      throw bad(
          fmt::format("has a shard of shape {}, which contradicts its metadata", to_string(tensor.local.back().shape)));
  }
  return tensor;
}

void TensorParts::validate(const DistributedTensor& tensor) const {
  for (const TensorEntry& local : tensor.local)
    if (local.dtype != tensor.dtype || local.shape.size() != tensor.shape.size())
      throw bad(fmt::format("has a local shard {} {}, but is {} {}", name(local.dtype), to_string(local.shape),
                            name(tensor.dtype), to_string(tensor.shape)));
  if (tensor.kind == DistributedTensor::Kind::kSharded) {
    for (std::size_t i = 0; i < tensor.local.size(); ++i)
      if (tensor.begins[i].size() != tensor.shape.size() ||
          !contains(tensor.shape, {tensor.begins[i], tensor.local[i].shape}))
        throw bad(fmt::format("has a shard at {} of shape {}, outside its shape {}", to_string(tensor.begins[i]),
                              to_string(tensor.local[i].shape), to_string(tensor.shape)));
    return;
  }
  if (tensor.placements.size() != tensor.mesh.size())
    throw bad(fmt::format("has {} placements on a mesh of shape {}", tensor.placements.size(), to_string(tensor.mesh)));
  bool inside = tensor.coordinate.size() == tensor.mesh.size();
  for (std::size_t d = 0; inside && d < tensor.mesh.size(); ++d) inside = tensor.coordinate[d] < tensor.mesh[d];
  if (!inside)
    throw bad(fmt::format("is at {} of a mesh of shape {}", to_string(tensor.coordinate), to_string(tensor.mesh)));
  for (const MeshPlacement& placement : tensor.placements)
    if (placement.kind != MeshPlacement::Kind::kReplicate && placement.dim >= tensor.shape.size())
      throw bad(fmt::format("is sharded along dim {}, but has the shape {}", placement.dim, to_string(tensor.shape)));
}

}  // namespace

RankTensors read_rank_tensors(Files& files, const fs::path& path, std::uint64_t rank) {
  const FileStamp stamp = files.stamp(path);
  const TorchFile file = read_torch_file(*open_weights(files, path), path);
  StateDict state_dict = find_state_dict(file, [&](PickleRef node) { return file.is_tensor(node); });
  RankTensors result{{path, file.size_bytes(), stamp}, {}, std::move(state_dict.warnings)};
  result.tensors.reserve(state_dict.values.size());
  SharedParts shared{rank, {}, 0};
  for (const auto& [name, node] : state_dict.values)
    result.tensors.push_back(TensorParts(file, name, shared).read(node));
  return result;
}

}  // namespace reshard
