// Splitting a block of rows along its inner dim, joining it again, transposes, and checksums: with the best instruction
// set and in plain C++, compared with a memcpy of as many bytes and with xtensor.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "bench.h"
#include "cuts.h"
#include "reshard/base/crc32.h"
#include "reshard/tensor/values/simd.h"

namespace reshard::bench {
namespace {

void copy_together(benchmark::State& state, Direction direction, std::size_t parts, std::size_t segment_bytes,
                   const std::string& target) {
  const Cut cut(parts, segment_bytes);
  use_simd_target(target);
  measure(state, cut.block.size(), [&] { copy_runs_together(cut.copies(direction)); });
}

void copy_one_by_one(benchmark::State& state, Direction direction, std::size_t parts, std::size_t segment_bytes) {
  const Cut cut(parts, segment_bytes);
  use_simd_target(simd_targets().front());
  measure(state, cut.block.size(), [&] {
    for (const RunsCopy& copy : cut.copies(direction))
      copy_runs(*copy.runs, copy.a, copy.a_origin_bytes, copy.b, copy.b_origin_bytes);
  });
}

#if RESHARD_HAS_XTENSOR
template <typename Elem>
void split_by_xtensor(benchmark::State& state, std::size_t parts, std::size_t segment_bytes) {
  XtensorCut<Elem> cut(parts, segment_bytes);
  measure(state, cut.block.size() * sizeof(Elem), [&] { cut.split(); });
}

template <typename Elem, std::size_t kParts>
void concat_by_xtensor(benchmark::State& state, std::size_t segment_bytes) {
  XtensorCut<Elem> cut(kParts, segment_bytes);
  measure(state, cut.block.size() * sizeof(Elem), [&] { cut.concatenate(std::make_index_sequence<kParts>()); });
}

#endif

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
#if RESHARD_HAS_XTENSOR
  const bool odd = segment_bytes % 2 != 0;
  benchmark::RegisterBenchmark(title("split", "xtensor").c_str(),
                               odd ? split_by_xtensor<std::uint8_t> : split_by_xtensor<std::uint16_t>, kParts,
                               segment_bytes);
  benchmark::RegisterBenchmark(title("concat", "xtensor").c_str(),
                               odd ? concat_by_xtensor<std::uint8_t, kParts> : concat_by_xtensor<std::uint16_t, kParts>,
                               segment_bytes);
#endif
}

void transpose_with(benchmark::State& state, std::size_t elem_bytes, std::size_t rows, const std::string& target) {
  const std::size_t columns = kBlockBytes / elem_bytes / rows;
  const Bytes from = some_bytes(kBlockBytes);
  Bytes to(kBlockBytes);
  use_simd_target(target);
  measure(state, rows * columns * elem_bytes, [&] { transpose(rows, columns, elem_bytes, from, to); });
}

#if RESHARD_HAS_XTENSOR
template <typename Elem>
void transpose_by_xtensor(benchmark::State& state, std::size_t rows) {
  const std::size_t columns = kBlockBytes / sizeof(Elem) / rows;
  const auto from = xt::xtensor<Elem, 2>::from_shape({rows, columns});
  auto to = xt::xtensor<Elem, 2>::from_shape({columns, rows});
  measure(state, from.size() * sizeof(Elem), [&] { xt::noalias(to) = xt::transpose(from); });
}
#endif

template <typename Elem>
void register_transposes_of() {
  for (const std::size_t rows : {100, 512, 4096}) {
    const std::string name = "transpose/" + std::to_string(sizeof(Elem)) + "B/" + std::to_string(rows) + "rows/";
    for (const std::string& target : {simd_targets().front(), simd_targets().back()})
      benchmark::RegisterBenchmark((name + target).c_str(), transpose_with, sizeof(Elem), rows, target);
#if RESHARD_HAS_XTENSOR
    benchmark::RegisterBenchmark((name + "xtensor").c_str(), transpose_by_xtensor<Elem>, rows);
#endif
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
