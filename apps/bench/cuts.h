// A block of rows that is split along its inner dim into parts, joined again, or transposed: by reshard and by xtensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "reshard/tensor/copy/copy.h"
#include "reshard/tensor/copy/runs.h"
#include "timing.h"
#include "xtensor.h"

namespace reshard::bench {

constexpr std::size_t kBlockBytes = std::size_t{2} << 20;  // larger than a core's caches, smaller than the shared one

enum class Direction { kSplit, kConcat };

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
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  std::size_t bytes(std::size_t part_count) const { return rows * part_count * segment_bytes; }
  const std::vector<RunsCopy>& copies(Direction direction) const {
    return direction == Direction::kSplit ? splits : concats;
  }

  std::size_t segment_bytes;
  std::size_t rows;
  Bytes block;
  std::vector<Bytes> parts;
  std::vector<Runs> runs;
  std::vector<Runs> swapped_runs;
  std::vector<RunsCopy> splits;
  std::vector<RunsCopy> concats;
};

/// Transposes a matrix of elements of `elem_bytes`.
inline void transpose(std::size_t rows, std::size_t columns, std::size_t elem_bytes, const Bytes& from, Bytes& to) {
  copy_grid({rows, columns * elem_bytes, elem_bytes}, {columns, elem_bytes, rows * elem_bytes}, elem_bytes, from.data(),
            to.data());
}

#if RESHARD_HAS_XTENSOR
/// The same by xtensor, whose elements are as wide as the segments permit, up to the 2 bytes of usual weights.
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

  void split() {
    for (std::size_t i = 0; i < parts.size(); ++i) xt::noalias(parts[i]) = columns(i);
  }
  template <std::size_t... kPart>
  void concatenate(std::index_sequence<kPart...>) {
    xt::noalias(block) = xt::concatenate(xt::xtuple(parts[kPart]...), 1);
  }

  std::size_t width;
  std::size_t rows;
  Matrix block;
  std::vector<Matrix> parts;
};
#endif

}  // namespace reshard::bench
