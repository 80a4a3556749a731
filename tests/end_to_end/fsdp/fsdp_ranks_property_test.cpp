// The layout fsdp-ranks on random meshes and placements, against slices that the test makes by itself.

#include <numeric>

#include "support/dtensors.h"
#include "support/pickles.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using Indices = std::vector<std::uint64_t>;

/// torch.chunk: parts of as many elements, the last less, and empty ones where there are no more.
std::vector<Indices> chunks(const Indices& all, std::uint64_t count) {
  std::vector<Indices> parts(count);
  const std::uint64_t each = std::max<std::uint64_t>(1, (all.size() + count - 1) / count);
  for (std::size_t i = 0; i < all.size(); ++i) parts[i / each].push_back(all[i]);
  return parts;
}

/// What a placement leaves of the indices of its dim, as placement_types.py of 2.6 cuts it.
Indices placed(const Indices& all, const TestPlacement& placement, std::uint64_t at, std::uint64_t count) {
  if (placement.kind == 'S') return chunks(all, count)[at];
  Indices left;
  const std::vector<Indices> parts = chunks(all, count * placement.split_factor);
  for (std::uint64_t j = 0; j < placement.split_factor; ++j)
    left.insert(left.end(), parts[at + j * count].begin(), parts[at + j * count].end());
  return left;
}

/// The elements of `tensor` at these indices of its dims.
TensorData gathered(const TensorData& tensor, const std::vector<Indices>& indices) {
  TensorData part{tensor.dtype, {}, {}};
  std::vector<std::uint64_t> places{0};
  const Dims strides = c_strides(tensor.shape);
  for (std::size_t d = 0; d < indices.size(); ++d) {
    part.shape.push_back(indices[d].size());
    std::vector<std::uint64_t> longer;
    for (const std::uint64_t place : places)
      for (const std::uint64_t index : indices[d]) longer.push_back(place + index * strides[d]);
    places = std::move(longer);
  }
  for (const std::uint64_t place : places) part.bytes += tensor.bytes.substr(place * 4, 4);
  return part;
}

struct Sample {
  TensorData tensor;
  std::vector<TestPlacement> placements;
};

/// A tensor whose strided shards divide evenly, as torch needs it.
Sample random_sample(Random& random, const Dims& mesh) {
  Sample sample;
  Dims shape(pick(random, 0, 3));
  for (std::uint64_t& size : shape) size = pick(random, 1, 9);
  std::vector<bool> cut(shape.size());
  for (std::size_t m = 0; m < mesh.size(); ++m) {
    TestPlacement placement;
    if (!shape.empty() && random() % 4 != 0) {
      placement = {'S', random() % shape.size(), 1};
      if (!cut[placement.dim] && random() % 3 == 0) {
        placement.kind = 'T';
        placement.split_factor = pick(random, 1, 3);
        shape[placement.dim] = placement.split_factor * mesh[m] * pick(random, 1, 3);
      }
      cut[placement.dim] = true;
    }
    sample.placements.push_back(placement);
  }
  sample.tensor = random_tensor(random, DType::kF32, shape);
  return sample;
}

/// A mesh of one to three dims, each of them of one dim of another mesh or flattened of several.
TestMesh random_mesh(Random& random) {
  TestMesh mesh;
  mesh.root.resize(pick(random, 1, 4));
  for (std::uint64_t& size : mesh.root) size = pick(random, 1, mesh.root.size() == 1 ? 11 : 3);
  mesh.made_of.resize(pick(random, 1, std::min<std::uint64_t>(mesh.root.size(), 3)));
  for (std::size_t d = 0; d < mesh.root.size(); ++d)
    mesh.made_of[d < mesh.made_of.size() ? d : random() % mesh.made_of.size()].push_back(d);
  for (const std::vector<std::size_t>& dims : mesh.made_of) {
    mesh.shape.push_back(1);
    for (const std::size_t d : dims) mesh.shape.back() *= mesh.root[d];
  }
  return mesh;
}

TEST_CASE("DTensors of random meshes and placements are put together byte for byte, of every version of torch") {
  for (const std::uint64_t seed : seeds(150)) {
    CAPTURE(seed);
    Random random(seed);
    const TempDir temp;
    const TestMesh described = random_mesh(random);
    const Dims& mesh = described.shape;
    std::map<std::string, Sample> samples;
    for (std::uint64_t i = pick(random, 1, 6); i > 0; --i)
      samples["w" + std::to_string(i)] = random_sample(random, mesh);
    const auto version = static_cast<TorchVersion>(random() % 4);
    const std::uint64_t ranks = num_elems(mesh).value();
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const Dims coordinate = coordinate_in(described, rank);
      SavedFile file;
      std::vector<std::pair<std::string, std::string>> items;
      for (const auto& [name, sample] : samples) {
        std::vector<Indices> indices;
        for (const std::uint64_t size : sample.tensor.shape) {
          indices.emplace_back(size);
          std::iota(indices.back().begin(), indices.back().end(), 0);
        }
        for (std::size_t m = 0; m < mesh.size(); ++m) {
          const TestPlacement& placement = sample.placements[m];
          if (placement.kind == 'R') continue;
          indices[placement.dim] = placed(indices[placement.dim], placement, coordinate[m], mesh[m]);
        }
        items.emplace_back(name, pickled_dtensor(file, gathered(sample.tensor, indices), sample.tensor.shape, described,
                                                 coordinate, sample.placements, version));
      }
      file.save(
          temp / "ranks" / ("model_world_size_" + std::to_string(ranks) + "_rank_" + std::to_string(rank) + ".pt"),
          pickles::dict(items));
    }
    TensorMap expected;
    for (const auto& [name, sample] : samples) expected[name] = sample.tensor;
    CHECK((converted(temp / "ranks", temp / "out") == expected));
  }
}

TEST_CASE("Parts of DTensors that do not fit their placements are refused, and so are flat parameters") {
  const TempDir temp;
  fs::create_directories(temp / "ranks");
  const auto path = [&](std::uint64_t rank) {
    return temp / ("ranks/pytorch_model_fsdp_0_rank" + std::to_string(rank) + ".bin");
  };
  struct Tensor {
    std::vector<TestPlacement> placements;
    Dims shape{2}, mesh{2};
  };
  check_refusals<Tensor>(
      [&](const Tensor& tensor) {
        for (std::uint64_t rank = 0; rank < num_elems(tensor.mesh).value(); ++rank) {
          SavedFile file;
          Dims coordinate(tensor.mesh.size());
          coordinate.back() = rank;
          const TensorData two{DType::kF32, {2}, std::string(8, 'x')};
          file.save(path(rank), pickles::dict({{"w", pickled_dtensor(file, two, tensor.shape, {tensor.mesh}, coordinate,
                                                                     tensor.placements)}}));
        }
        convert(temp / "ranks", temp / "out");
      },
      {.path = path(0), .tensor = "w"},
      {{"a part of another size",
        {{{'S', 0}}, {3}},
        {.path = path(1), .says = "has the shape [2] here, but its placements assign [1] of [3]"}},
       {"another dim", {{{'S', 1}}}, {.says = "is sharded along dim 1, but has the shape [2]"}},
       {"more dims", {{{'S', 0}}, {2, 1}}, {.says = "has a local shard F32 [2], but is F32 [2, 1]"}},
       {"no placements", {{}}, {.says = "has 0 placements on a mesh of shape [2]"}},
       {"two placements", {{{'R'}, {'R'}}}, {.says = "more placements than its mesh has dims"}},
       {"no split", {{{'T', 0, 0}}, {2}, {1}}, {.says = "a split_factor of 0"}},
       {"a sum", {{{'P'}}}, {.kind = ErrorKind::kUnsupported, .says = "is placed as an object of"}},
       {"an uneven split", {{{'T', 0, 2}}, {5}}, {.kind = ErrorKind::kUnsupported, .says = "split differently"}}});
  SavedFile file;
  const std::string value = file.flat(DType::kF32, std::string(8, 'x'));
  file.save(temp / "flat/pytorch_model_fsdp_rank0.bin", pickles::dict({{"_fsdp_wrapped_module._flat_param", value}}));
  check_refused([&] { convert(temp / "flat", temp / "out"); },
                {.kind = ErrorKind::kUnsupported, .says = "is a flat FSDP parameter", .hint = "SHARDED_STATE_DICT"});
}

}  // namespace
}  // namespace reshard::test
