// A model that no family describes, its metadata filled in with the library's types as somebody's own program would, is
// consolidated by that metadata alone.

#include "reshard/specs/stages/parallel_layers.h"
#include "reshard/specs/stages/stage_json.h"
#include "support/catch.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTp = 2;

/// Rows or columns [begin, end) of a matrix.
TensorData part_of(const TensorData& whole, std::size_t dim, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t rows = whole.shape[0], columns = whole.shape[1], elem = bits(whole.dtype) / 8;
  TensorData part{whole.dtype, whole.shape, {}};
  part.shape[dim] = end - begin;
  for (std::uint64_t row = dim == 0 ? begin : 0; row < (dim == 0 ? end : rows); ++row) {
    const std::uint64_t first = dim == 0 ? 0 : begin, last = dim == 0 ? columns : end;
    part.bytes += whole.bytes.substr((row * columns + first) * elem, (last - first) * elem);
  }
  return part;
}

TensorData half_of(const TensorData& whole, std::size_t dim, std::uint64_t rank) {
  const std::uint64_t size = whole.shape[dim] / kTp;
  return part_of(whole, dim, size * rank, size * (rank + 1));
}

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
    const auto half = [&](const char* name, std::size_t dim) { return half_of(whole.at(name), dim, rank); };
    const TensorData& packed = whole.at("block.packed.weight");
    const TensorMap held{{"vocabulary.weight", half("vocabulary.weight", 0)},
                         {"across.weight", half("across.weight", 1)},
                         {"block.gate_up.weight", joined(half("block.gate.weight", 0), half("block.up.weight", 0))},
                         // A stride of 2: of each half of the rows, this rank's part.
                         {"block.packed.weight", joined(part_of(packed, 0, 2 * rank, 2 * rank + 2),
                                                        part_of(packed, 0, 4 + 2 * rank, 6 + 2 * rank))},
                         {"block.down.weight", half("block.down.weight", 1)},
                         {"norm.weight", whole.at("norm.weight")}};
    const fs::path directory = folder / ("tp_rank_0" + std::to_string(rank) + "_pp_rank_00");
    fs::create_directories(directory);
    write_safetensors(directory / "model.safetensors", held);
  }
  write_file(folder / metadata_file_name(0), metadata_text(metadata));

  ConsolidateRequest request;
  request.source.path = temp / "mine";
  request.output_directory = temp / "whole";
  consolidate(request);
  CHECK((read_tensors(temp / "whole/model.safetensors") == whole));
}

}  // namespace
}  // namespace reshard::test
