// A model that no family describes, its metadata filled in with the library's types as somebody's own program would, is
// consolidated by that metadata alone.

#include "reshard/specs/stages/parallel_layers.h"
#include "reshard/specs/stages/stage_json.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/random.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTp = 2;

/// `a` over `b`.
TensorData joined(TensorData a, const TensorData& b) {
  a.shape[0] += b.shape[0];
  a.bytes += b.bytes;
  return a;
}

TEST_CASE("Ranks of a custom model are consolidated by metadata that the library's types have written") {
  Random random(11);
  TensorMap whole;
  for (const auto& [name, shape] : std::map<std::string, Dims>{{"vocabulary.weight", {8, 6}},
                                                               {"across.weight", {5, 6}},
                                                               {"block.gate.weight", {4, 6}},
                                                               {"block.up.weight", {4, 6}},
                                                               {"block.packed.weight", {8, 6}},
                                                               {"block.down.weight", {6, 4}},
                                                               {"norm.weight", {6, 1}}})
    whole[name] = random_tensor(random, DType::kBF16, shape);

  const TempDir temp;
  const fs::path folder = temp / "mine/tensor_parallel_shards";
  const StageMetadata metadata{parallel_parameters({ParallelEmbedding{"vocabulary"}, ParallelEmbedding{"across", true},
                                                    ColumnParallelLinear{"block.gate_up", false, 2},
                                                    ColumnParallelLinear{"block.packed", false, 2},
                                                    RowParallelLinear{"block.down"}, ReplicatedLayer{"norm"}},
                                                   kTp),
                               {{"block", {FusedLinearsSpec{"gate_up", {"gate", "up"}, false, 0, {4, 4}, kTp}}}}};
  for (std::uint64_t rank = 0; rank < kTp; ++rank) {
    const auto half = [&](const char* name, std::size_t dim, std::uint64_t stride = 1) {
      return rank_slice(whole.at(name), dim, kTp, rank, stride);
    };
    write_safetensors(folder / ("tp_rank_0" + std::to_string(rank) + "_pp_rank_00") / "model.safetensors",
                      {{"vocabulary.weight", half("vocabulary.weight", 0)},
                       {"across.weight", half("across.weight", 1)},
                       {"block.gate_up.weight", joined(half("block.gate.weight", 0), half("block.up.weight", 0))},
                       {"block.packed.weight", half("block.packed.weight", 0, 2)},
                       {"block.down.weight", half("block.down.weight", 1)},
                       {"norm.weight", whole.at("norm.weight")}});
  }
  write_file(folder / metadata_file_name(0), metadata_text(metadata));
  CHECK((consolidated(temp / "mine", temp / "whole") == whole));
}

}  // namespace
}  // namespace reshard::test
