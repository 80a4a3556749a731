// Splitting a block of rows along its inner dim, joining it again, transposes, and checksums: with the best instruction
// set and in plain C++, compared with a memcpy of as many bytes and with xtensor.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xview.hpp>

#include "bench.h"
#include "reshard/base/crc32.h"
#include "reshard/tensor/copy/copy.h"
#include "reshard/tensor/copy/runs.h"
#include "reshard/tensor/values/simd.h"

namespace reshard::bench {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{2} << 20;  // larger than a core's caches, smaller than the shared one

/// A block of rows of `parts` segments, and the separate parts that it is split into.
struct Cut {
  Cut(std::size_t part_count, std::size_t segment)
      : segment_bytes(segment), rows(kBlockBytes / (part_count * segment)), block(some_bytes(bytes(part_count))) {
    for (std::size_t i = 0; i < part_count; ++i) {
      parts.emplace_back(rows * segment_bytes);
      runs.push_back(*make_runs(DType::kU8, {rows, segment_bytes}, {rows, part_count * segment_bytes},
                                {0, i * segment_bytes}, {rows, segment_bytes}, {0, 0}));
      swapped_runs.push_back(swapped(runs.back()));
    }
    for (std::size_t i = 0; i < part_count; ++i) {
      splits.push_back({&runs[i], block.data(), 0, parts[i].data(), 0});
      concats.push_back({&swapped_runs[i], parts[i].data(), 0, block.data(), 0});
    }
  }

  std::size_t bytes(std::size_t part_count) const { return rows * part_count * segment_bytes; }

  std::size_t segment_bytes;
  std::size_t rows;
  Bytes block;
  std::vector<Bytes> parts;
  std::vector<Runs> runs;
  std::vector<Runs> swapped_runs;
  std::vector<RunsCopy> splits;
  std::vector<RunsCopy> concats;
};

enum class Direction { kSplit, kConcat };

void copy_together(benchmark::State& state, Direction direction, std::size_t parts, std::size_t segment_bytes,
                   const std::string& target) {
  const Cut cut(parts, segment_bytes);
  use_simd_target(target);
  measure(state, cut.block.size(),
          [&] { copy_runs_together(direction == Direction::kSplit ? cut.splits : cut.concats); });
}

void copy_one_by_one(benchmark::State& state, Direction direction, std::size_t parts, std::size_t segment_bytes) {
  const Cut cut(parts, segment_bytes);
  use_simd_target(simd_targets().front());
  measure(state, cut.block.size(), [&] {
    for (const RunsCopy& copy : direction == Direction::kSplit ? cut.splits : cut.concats)
      copy_runs(*copy.runs, copy.a, copy.a_origin_bytes, copy.b, copy.b_origin_bytes);
  });
}

/// xtensor's elements are as wide as the segments permit, up to the 2 bytes of usual weights.
template <typename Elem>
struct XtensorCut {
  using Matrix = xt::xtensor<Elem, 2>;

  XtensorCut(std::size_t part_count, std::size_t segment_bytes)
      : width(segment_bytes / sizeof(Elem)),
        rows(kBlockBytes / (part_count * segment_bytes)),
        block(Matrix::from_shape({rows, part_count * width})),
        parts(part_count, Matrix::from_shape({rows, width})) {
    block.fill(Elem{1});
    for (Matrix& part : parts) part.fill(Elem{2});
  }

  auto columns(std::size_t part) { return xt::view(block, xt::all(), xt::range(part * width, (part + 1) * width)); }

  template <std::size_t... kPart>
  void concatenate(std::index_sequence<kPart...>) {
    xt::noalias(block) = xt::concatenate(xt::xtuple(parts[kPart]...), 1);
  }

  std::size_t width;
  std::size_t rows;
  Matrix block;
  std::vector<Matrix> parts;
};

template <typename Elem>
void split_by_xtensor(benchmark::State& state, std::size_t parts, std::size_t segment_bytes) {
  XtensorCut<Elem> cut(parts, segment_bytes);
  measure(state, cut.block.size() * sizeof(Elem), [&] {
    for (std::size_t i = 0; i < parts; ++i) xt::noalias(cut.parts[i]) = cut.columns(i);
  });
}

template <typename Elem, std::size_t kParts>
void concat_by_xtensor(benchmark::State& state, std::size_t segment_bytes) {
  XtensorCut<Elem> cut(kParts, segment_bytes);
  measure(state, cut.block.size() * sizeof(Elem), [&] { cut.concatenate(std::make_index_sequence<kParts>()); });
}

template <std::size_t kParts>
void register_cuts(std::size_t segment_bytes) {
  const auto title = [&](std::string_view direction, std::string_view how) {
    return fmt::format("{}/{}x{}B/{}", direction, kParts, segment_bytes, how);
  };
  for (const auto& [direction, name] : {std::pair{Direction::kSplit, "split"}, {Direction::kConcat, "concat"}}) {
    for (const std::string& target : {simd_targets().front(), simd_targets().back()})
      benchmark::RegisterBenchmark(title(name, target).c_str(), copy_together, direction, kParts, segment_bytes,
                                   target);
    benchmark::RegisterBenchmark(title(name, "one_by_one").c_str(), copy_one_by_one, direction, kParts, segment_bytes);
  }
  const bool odd = segment_bytes % 2 != 0;
  benchmark::RegisterBenchmark(title("split", "xtensor").c_str(),
                               odd ? split_by_xtensor<std::uint8_t> : split_by_xtensor<std::uint16_t>, kParts,
                               segment_bytes);
  benchmark::RegisterBenchmark(title("concat", "xtensor").c_str(),
                               odd ? concat_by_xtensor<std::uint8_t, kParts> : concat_by_xtensor<std::uint16_t, kParts>,
                               segment_bytes);
}

void transpose(benchmark::State& state, std::size_t elem_bytes, std::size_t rows, const std::string& target) {
  const std::size_t columns = kBlockBytes / elem_bytes / rows;
  const Bytes from = some_bytes(kBlockBytes);
  Bytes to(kBlockBytes);
  use_simd_target(target);
  measure(state, rows * columns * elem_bytes, [&] {
    copy_grid({rows, columns * elem_bytes, elem_bytes}, {columns, elem_bytes, rows * elem_bytes}, elem_bytes,
              from.data(), to.data());
  });
}

template <typename Elem>
void transpose_by_xtensor(benchmark::State& state, std::size_t rows) {
  const std::size_t columns = kBlockBytes / sizeof(Elem) / rows;
  const auto from = xt::xtensor<Elem, 2>::from_shape({rows, columns});
  auto to = xt::xtensor<Elem, 2>::from_shape({columns, rows});
  measure(state, from.size() * sizeof(Elem), [&] { xt::noalias(to) = xt::transpose(from); });
}

template <typename Elem>
void register_transposes_of() {
  for (const std::size_t rows : {100, 512, 4096}) {
    const std::string name = "transpose/" + std::to_string(sizeof(Elem)) + "B/" + std::to_string(rows) + "rows/";
    for (const std::string& target : {simd_targets().front(), simd_targets().back()})
      benchmark::RegisterBenchmark((name + target).c_str(), transpose, sizeof(Elem), rows, target);
    benchmark::RegisterBenchmark((name + "xtensor").c_str(), transpose_by_xtensor<Elem>, rows);
  }
}

}  // namespace

void register_checksums() {
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= std::size_t{4} << 20; bytes *= 4)
    benchmark::RegisterBenchmark(("crc32/" + std::to_string(bytes)).c_str(), [bytes](benchmark::State& state) {
      const Bytes data = some_bytes(bytes);
      measure(state, bytes, [&] { benchmark::DoNotOptimize(crc32(data)); });
    });
}

void register_copies() {
  for (const std::size_t segment_bytes : {1, 2, 4, 7, 8, 16, 24, 32, 64, 96, 128, 256, 1024, 4096}) {
    register_cuts<8>(segment_bytes);
    register_cuts<64>(segment_bytes);
  }
}

void register_transposes() {
  register_transposes_of<std::uint8_t>();
  register_transposes_of<std::uint16_t>();
  register_transposes_of<std::uint32_t>();
  register_transposes_of<std::uint64_t>();
}

}  // namespace reshard::bench
