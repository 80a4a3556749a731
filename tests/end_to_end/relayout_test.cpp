// Ranks by metadata that is written by hand, there and back, without a model.

#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/ranks/rank_folder.h"
#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/stages/stage_json.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A cut layout of one tensor "w" for every rank, made of metadata written by hand.
struct HandMade {
  StageMetadata metadata;
  TensorMap originals;
  std::uint32_t tp;
};

/// Shards by hand-made metadata through layouts and programs alone, checks each rank against `expected`, and puts the
/// ranks together again.
void check_hand_made(const HandMade& hand, const std::vector<TensorMap>& expected, std::uint64_t block_bytes) {
  const TempDir temp;
  write_safetensors(temp / "model.safetensors", hand.originals);
  Job there;
  there.source = whole_map({read_safetensors(temp / "model.safetensors")});
  there.target = sharded_target_map({StagePlan{hand.metadata, {}}}, hand.tp, there.source.logical,
                                    {static_cast<const RankLayout*>(layout("ranks"))});
  there.program = make_program(there.source, there.target);
  run_in_blocks(there, temp.path(), block_bytes, 2);
  for (std::uint32_t t = 0; t < hand.tp; ++t) {
    INFO("rank " << t);
    CHECK((read_ranks(temp.path()).at(rank_name({t, 0}, false)) == expected[t]));
  }
  write_file(temp / "tensor_parallel_shards/mp_metadata_pp_rank_0.json", metadata_text(hand.metadata));
  Job back;
  const ShardedCheckpoint checkpoint = read_sharded_checkpoint(*find_shards(temp.path()));
  back.source = sharded_source_map(checkpoint, {});
  back.target = hf_target_map(back.source.logical, 1 << 20);
  back.program = make_program(back.source, back.target);
  run_in_blocks(back, temp / "back", block_bytes, 2);
  CHECK((read_tensors(temp / "back/model.safetensors") == hand.originals));
}

/// Elements of one byte at `index(i, j)` of a matrix of `columns`.
template <typename Index>
TensorData pick_elements(const TensorData& from, std::uint64_t rows, std::uint64_t columns, Index&& index) {
  TensorData tensor{from.dtype, {rows, columns}, {}};
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < columns; ++j) {
      const auto [row, column] = index(i, j);
      tensor.bytes += from.bytes[row * from.shape[1] + column];
    }
  return tensor;
}

TEST_CASE("Strided parameters of any dim take the chunks that the formula says, there and back") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 61));
  INFO("seed " << seed);
  Random random(seed);
  HandMade hand;
  hand.tp = static_cast<std::uint32_t>(pick(random, 1, 4));
  const std::uint64_t stride = pick(random, 1, 3);
  const auto dim = static_cast<std::uint32_t>(random() % 2);
  const std::uint64_t chunk = pick(random, 1, 3);
  Dims shape{pick(random, 1, 5), pick(random, 1, 5)};
  shape[dim] = chunk * hand.tp * stride;
  hand.metadata.parameters = {{"w", true, dim, static_cast<std::uint32_t>(stride), hand.tp}};
  hand.metadata.parameters.push_back({"scalar", false, 0, 1, 1});
  hand.metadata.parameters.push_back({"empty", true, 0, 1, hand.tp});
  hand.originals = {{"w", random_tensor(random, DType::kU8, shape)},
                    {"scalar", random_tensor(random, DType::kF64, {})},
                    {"empty", {DType::kF32, {0, 3}, {}}}};
  std::vector<TensorMap> expected;
  for (std::uint64_t t = 0; t < hand.tp; ++t) {
    const auto at = [&](std::uint64_t k) { return (t + k / chunk * hand.tp) * chunk + k % chunk; };
    TensorMap rank = hand.originals;
    rank["w"] = pick_elements(
        hand.originals["w"], dim == 0 ? chunk * stride : shape[0], dim == 1 ? chunk * stride : shape[1],
        [&](std::uint64_t i, std::uint64_t j) { return dim == 0 ? std::pair(at(i), j) : std::pair(i, at(j)); });
    expected.push_back(rank);
  }
  check_hand_made(hand, expected, pick(random, 1, 40));
}

TEST_CASE("Linears of different sizes fused along rows are fused column by column, there and back") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 41));
  INFO("seed " << seed);
  Random random(seed);
  HandMade hand;
  hand.tp = static_cast<std::uint32_t>(pick(random, 1, 4));
  const std::uint64_t a = pick(random, 1, 4);
  const std::uint64_t b = pick(random, 1, 4);
  const std::uint64_t rows = pick(random, 1, 6);
  hand.metadata.parameters = {{"m.ab.weight", true, 1, 2, hand.tp}};
  hand.metadata.modules = {{"m", {FusedLinearsSpec{"ab", {"a", "b"}, false, 1, {a * hand.tp, b * hand.tp}, hand.tp}}}};
  hand.originals = {{"m.a.weight", random_tensor(random, DType::kI8, {rows, a * hand.tp})},
                    {"m.b.weight", random_tensor(random, DType::kI8, {rows, b * hand.tp})}};
  std::vector<TensorMap> expected;
  for (std::uint64_t t = 0; t < hand.tp; ++t) {
    TensorData joined{DType::kI8, {rows, a + b}, {}};
    for (std::uint64_t i = 0; i < rows; ++i) {
      joined.bytes += hand.originals["m.a.weight"].bytes.substr(i * a * hand.tp + t * a, a);
      joined.bytes += hand.originals["m.b.weight"].bytes.substr(i * b * hand.tp + t * b, b);
    }
    expected.push_back({{"m.ab.weight", joined}});
  }
  check_hand_made(hand, expected, pick(random, 1, 40));
}

}  // namespace
}  // namespace reshard::test
