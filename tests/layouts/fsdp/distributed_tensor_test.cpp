#include "reshard/layouts/fsdp/distributed_tensor.h"

#include "reshard/io/local_storage.h"
#include "support/dtensors.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

using namespace pickles;
using Kind = DistributedTensor::Kind;

const TensorData kLocal{DType::kF32, {2, 3}, std::string(24, 'x')};

RankTensors read(const TempDir& temp, const SavedFile& file, const std::string& value, std::uint64_t rank = 1) {
  file.save(temp / "f.pt", dict({{"w", value}}));
  return read_rank_tensors(local_storage(), temp / "f.pt", rank);
}

/// What a ShardedTensor of shape [4, 3] is made of; a test changes one of them.
struct Shards {
  std::vector<std::int64_t> offsets{2, 0};
  std::vector<std::int64_t> sizes{2, 3};
  std::string dtype = global("torch", "float32");
  std::string local;  // of local shards, where it is not a list of one
};

std::string pickled_shards(SavedFile& file, const Shards& with) {
  const std::string module = "torch.distributed._shard.sharded_tensor.";
  const auto slots = [](const std::string& value) { return tuple({kNone, value}); };
  const std::string place =
      object("torch.distributed._shard.metadata", "ShardMetadata",
             slots(dict({{"shard_offsets", numbers(with.offsets)}, {"shard_sizes", numbers(with.sizes)}})));
  const std::string shard =
      object(module + "shard", "Shard", slots(dict({{"tensor", file.tensor(kLocal)}, {"metadata", place}})));
  const std::string properties = object(module + "metadata", "TensorProperties", tuple({with.dtype, kFalse}));
  const std::string metadata =
      object(module + "metadata", "ShardedTensorMetadata", dict({{"tensor_properties", properties}}));
  const std::string type = global(module + "api", "ShardedTensor");
  const std::string state = tuple({with.local.empty() ? list({shard}) : with.local, metadata, kNone});
  return call("torch._tensor", "_rebuild_from_type_v2",
              {global("torch._utils", "_rebuild_wrapper_subclass"), type,
               tuple({type, global("torch", "float32"), pickled_size({4, 3})}), state});
}

TEST_CASE("Plain tensors, DTensors and ShardedTensors of a rank's file are told apart") {
  const TempDir temp;
  SavedFile file;
  file.save(temp / "f.pt", dict({{"plain", file.tensor(kLocal)},
                                 {"dtensor", pickled_dtensor(file, kLocal, {8, 3}, {{4}}, {1}, {{'S', 0}})},
                                 {"sharded", pickled_shards(file, {})}}));
  const RankTensors rank = read_rank_tensors(local_storage(), temp / "f.pt", 1);
  REQUIRE(rank.tensors.size() == 3);
  CHECK(rank.warnings.empty());
  CHECK(rank.tensors[0].kind == Kind::kWhole);
  CHECK(rank.tensors[0].shape == Dims{2, 3});
  const DistributedTensor& dtensor = rank.tensors[1];
  CHECK(dtensor.kind == Kind::kDTensor);
  CHECK(dtensor.shape == Dims{8, 3});
  CHECK(dtensor.mesh == Dims{4});
  CHECK(dtensor.coordinate == Dims{1});
  REQUIRE(dtensor.placements.size() == 1);
  CHECK(dtensor.placements[0].kind == MeshPlacement::Kind::kShard);
  const DistributedTensor& sharded = rank.tensors[2];
  CHECK(sharded.kind == Kind::kSharded);
  CHECK(sharded.shape == Dims{4, 3});
  CHECK(sharded.begins == std::vector<Dims>{{2, 0}});
  CHECK(sharded.local[0].shape == Dims{2, 3});
}

TEST_CASE("A rank without a share of a ShardedTensor has no part of it") {
  SavedFile file;
  CHECK(read(TempDir(), file, pickled_shards(file, {.local = "]"})).tensors[0].local.empty());
}

TEST_CASE("ShardedTensors that contradict themselves are refused") {
  const TempDir temp;
  const auto read_shards = [&](const Shards& shards) {
    SavedFile file;
    read(temp, file, pickled_shards(file, shards));
  };
  Refusal refusal{.path = temp / "f.pt", .tensor = "w"};
  check_each_refused<Shards>(
      read_shards, refusal,
      {{{.offsets = {3, 0}}, "has a shard at [3, 0] of shape [2, 3], outside its shape [4, 3]"},
       {{.offsets = {2}}, "outside its shape"},
       {{.offsets = {-1, 0}}, "its shard's offsets is"},
       {{.sizes = {1, 3}}, "has a shard of shape [2, 3], which contradicts its metadata"},
       {{.dtype = global("torch", "bfloat16")}, "has a local shard F32 [2, 3], but is BF16 [4, 3]"},
       {{.dtype = text("float32")}, "does not record its dtype"}});
  refusal.kind = ErrorKind::kUnsupported;
  check_each_refused<Shards>(
      read_shards, refusal,
      {{{.local = kNone}, "has no list of local shards"}, {{.local = list({number(1)})}, "has no \"tensor\""}});
}

TEST_CASE("DTensors whose mesh is not that of the file's rank are refused") {
  const TempDir temp;
  const auto refused = [&](std::uint64_t rank, const TestMesh& mesh, TorchVersion version, const char* says) {
    SavedFile file;
    const std::string value = pickled_dtensor(file, kLocal, {8, 3}, mesh, {1}, {{'S', 0}}, version);
    check_refused([&] { read(temp, file, value, rank); }, {.says = says, .hint = "renamed or swapped"});
  };
  for (const TorchVersion version : {TorchVersion::k22, TorchVersion::k26}) {
    refused(2, {{4}}, version, "belongs to the rank at [1] of its mesh, but rank 2");
    refused(1, {{4}, 4}, version, "its mesh does not have rank 1");
  }
  for (const TorchVersion version : {TorchVersion::k210, TorchVersion::k213})
    refused(9, {{4}}, version, "its mesh does not have rank 9");
  refused(2, {{4}}, TorchVersion::k213, "belongs to the rank at [1] of its mesh, but rank 2");
}

TEST_CASE("The shape and strides of a mesh's dims must fit each other") {
  const TempDir temp;
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const auto refused = [&](const Pairs& layout, ErrorKind kind, const char* says) {
    SavedFile file;
    const std::string types = "torch.distributed.";
    const std::string mesh = object(types + "device_mesh", "DeviceMesh",
                                    dict({{"_layout", object(types + "_mesh_layout", "_MeshLayout", dict(layout))},
                                          {"_flatten_rank_map", numbers({0, 1, 2, 3})}}));
    const std::string type = global(types + "tensor", "DTensor");
    const std::string spec =
        object(types + "tensor._dtensor_spec", "DTensorSpec", dict({{"mesh", mesh}, {"placements", tuple({})}}));
    const std::string value = call("torch._tensor", "_rebuild_from_type_v2",
                                   {global("torch._utils", "_rebuild_wrapper_subclass"), type,
                                    tuple({type, global("torch", "float32"), pickled_size({4, 3})}),
                                    dict({{"_local_tensor", file.tensor(kLocal)}, {"_spec", spec}})});
    check_refused([&] { read(temp, file, value); }, {.kind = kind, .tensor = "w", .says = says});
  };
  const auto axis = [](const std::string& shape, const std::string& stride) {
    return object("torch.distributed._mesh_layout", "_FlatLayout", dict({{"shape", shape}, {"stride", stride}}));
  };
  const auto bad = ErrorKind::kBadInput;
  refused({{"axes", tuple({axis(numbers({2, 2}), numbers({2}))})}}, bad, "another number of strides than of dims");
  refused({{"shape", numbers({2, 2})}, {"stride", numbers({2})}}, bad, "another number of strides than of dims");
  refused({{"axes", tuple({axis(numbers({0}), numbers({1}))})}}, bad, "has a mesh of shape [0]");
  refused({{"axes", tuple({axis(text("4"), numbers({1}))})}}, bad, "its mesh's layout is a string");
  refused({{"axes", tuple({kNone})}}, ErrorKind::kUnsupported, "has no \"shape\"");
  refused({{"shape", tuple(std::vector<std::string>(9, number(1)))},
           {"stride", tuple(std::vector<std::string>(9, number(1)))}},
          bad, "has a mesh of shape [1, 1, 1");
}

TEST_CASE("A tensor of another subclass, and an object of more attributes than torch gives any, are refused") {
  const TempDir temp;
  SavedFile file;
  const auto of_type = [](const std::string& type, const std::string& state) {
    return call("torch._tensor", "_rebuild_from_type_v2",
                {global("torch._utils", "_rebuild_wrapper_subclass"), type,
                 tuple({type, global("torch", "float32"), pickled_size({4})}), state});
  };
  std::vector<std::pair<std::string, std::string>> state;
  for (int i = 0; i < 300; ++i) state.emplace_back("a" + std::to_string(i), kNone);
  const std::string large = of_type(global("torch.distributed.tensor", "DTensor"), dict(state));
  const std::string other = of_type(global("torch.distributed.other", "Tensor"), dict({}));
  check_refused(
      [&] { read(temp, file, large); },
      {.path = temp / "f.pt", .tensor = "w", .says = "has an object with 300 attributes, more than torch ever writes"});
  check_refused([&] { read(temp, file, other); },
                {.kind = ErrorKind::kUnsupported,
                 .says = "is a torch.distributed.other.Tensor, a part of a tensor on several ranks",
                 .hint = "give the directory that contains the files of all ranks"});
}

}  // namespace
}  // namespace reshard::test
