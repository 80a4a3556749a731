#include "reshard/layouts/equal_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/opened_files.h"

namespace reshard {
namespace {

constexpr std::uint64_t kSampleElems = 256;
constexpr std::uint64_t kPartElems = 1 << 16;  // that are read at once

using Bytes = std::vector<std::byte>;

/// The strides of a stored tensor, in elements.
Dims strides_of(const TensorMap& map, std::uint32_t stored) {
  const auto found = map.strides.find(stored);
  return found == map.strides.end() ? c_strides(map.stored[stored].shape) : found->second;
}

/// Dims from the largest stride to the smallest.
std::vector<std::size_t> order_of(const Dims& strides) {
  std::vector<std::size_t> order(strides.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  return order;
}

/// The elements of a stored tensor in rows along one of its dims: that of the smallest stride, so that a row is one run
/// of bytes even if the file has the matrix transposed.
class Rows {
 public:
  /// \param sizes, strides  of the dims, from the outermost to the one along which rows run.
  Rows(OpenedFiles& files, const StoredTensor& stored, Dims sizes, Dims strides)
      : files_(files),
        stored_(stored),
        elem_bytes_(bits(stored.dtype) / 8),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)) {}

  std::size_t dims() const { return sizes_.size(); }
  std::uint64_t size(std::size_t dim) const { return sizes_[dim]; }
  std::uint64_t elems() const { return sizes_.back(); }
  std::uint64_t elem_bytes() const { return elem_bytes_; }
  std::uint64_t count() const { return rows_in(0); }
  /// Rows from one index to the next along a dim.
  std::uint64_t rows_per_index(std::size_t dim) const { return rows_in(dim + 1); }

  /// `elems` elements of a row, from `first` on.
  Bytes read(std::uint64_t row, std::uint64_t first, std::uint64_t elems) const {
    const std::uint64_t stride = strides_.back();
    std::uint64_t at = first * stride;
    for (std::size_t d = sizes_.size() - 1; d-- > 0;) {
      at += row % sizes_[d] * strides_[d];
      row /= sizes_[d];
    }
    Bytes span(((elems - 1) * stride + 1) * elem_bytes_);
    files_.at(stored_.file).read_at(stored_.offset_bytes + at * elem_bytes_, span);
    if (stride == 1) return span;
    Bytes bytes(elems * elem_bytes_);
    for (std::uint64_t i = 0; i < elems; ++i)
      std::memcpy(bytes.data() + i * elem_bytes_, span.data() + i * stride * elem_bytes_, elem_bytes_);
    return bytes;
  }

  /// Whether `holds(row, first, elems)` for all parts of all rows.
  template <typename Predicate>
  bool all_of(const Predicate& holds) const {
    for (std::uint64_t row = 0; row < count(); ++row)
      for (std::uint64_t first = 0; first < elems(); first += part_elems())
        if (!holds(row, first, std::min(part_elems(), elems() - first))) return false;
    return true;
  }

  /// Elements that are read at once: the bytes between strided ones count, which a file may claim to be many.
  std::uint64_t part_elems() const {
    return std::max<std::uint64_t>(1, kPartElems / std::max<std::uint64_t>(1, strides_.back()));
  }

 private:
  std::uint64_t rows_in(std::size_t dim) const {
    std::uint64_t rows = 1;
    for (std::size_t d = dim; d + 1 < sizes_.size(); ++d) rows *= sizes_[d];
    return rows;
  }

  OpenedFiles& files_;
  const StoredTensor& stored_;
  std::uint64_t elem_bytes_;
  Dims sizes_, strides_;
};

bool are_equal(const Rows& a, const Rows& b) {
  const std::uint64_t middle = a.count() / 2,
                      sample = std::min({kSampleElems, a.elems(), a.part_elems(), b.part_elems()});
  if (a.read(middle, 0, sample) != b.read(middle, 0, sample)) return false;
  const Rows& wider = a.part_elems() < b.part_elems() ? a : b;  // whose parts fit both
  return wider.all_of([&](std::uint64_t row, std::uint64_t first, std::uint64_t elems) {
    return a.read(row, first, elems) == b.read(row, first, elems);
  });
}

/// Whether a piece is the same all along the dim that is split, or all of it has one value: then the piece of another
/// rank may be the same.
bool repeats(const Rows& rows, std::size_t split) {
  const bool one_index = rows.size(split) == 1, along_rows = split + 1 == rows.dims();
  const std::uint64_t per_index = rows.rows_per_index(split);
  return rows.all_of([&](std::uint64_t row, std::uint64_t first, std::uint64_t elems) {
    const Bytes part = rows.read(row, first, elems);
    if (one_index || along_rows) {
      const Bytes value = rows.read(one_index ? 0 : row, 0, 1);
      for (std::size_t at = 0; at < part.size(); at += value.size())
        if (!std::equal(value.begin(), value.end(), part.begin() + static_cast<std::ptrdiff_t>(at))) return false;
      return true;
    }
    const std::uint64_t index = row / per_index % rows.size(split);
    return index == 0 || part == rows.read(row - index * per_index, first, elems);
  });
}

/// A logical tensor's first stored tensor on each tensor-parallel rank, with where it begins in the whole.
struct Part {
  std::uint32_t stored = 0;
  const Box* box = nullptr;
};

std::map<std::uint32_t, Part> parts_by_rank(const TensorMap& map, std::uint32_t logical) {
  std::map<std::uint32_t, Part> parts;
  for (const Piece& piece : map.pieces[logical]) {
    const StoredTensor& stored = map.stored[piece.stored];
    if (!stored.tied) parts.emplace(map.files[stored.file].tp_rank, Part{piece.stored, &piece.box});
  }
  return parts;
}

/// The first dim along which two pieces begin at different offsets; std::nullopt for replicas.
std::optional<std::size_t> dim_between(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d)
    if (a.begin[d] != b.begin[d]) return d;
  return std::nullopt;
}

bool can_be_compared(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && bits(a.dtype) % 8 == 0 && !a.shape.empty() && a.shape == b.shape && a.slices == 0 &&
         !a.paired_rows && std::find(a.shape.begin(), a.shape.end(), 0u) == a.shape.end();
}

class Comparison {
 public:
  Comparison(Files& files, const TensorMap& map) : files_(files, map.files), map_(map) {}

  void run(std::uint32_t logical) {
    const auto parts = parts_by_rank(map_, logical);
    if (parts.size() < 2) return;
    const auto first = parts.begin();
    for (const auto other : {std::next(first), std::next(first, static_cast<std::ptrdiff_t>(parts.size() / 2))}) {
      const auto split = dim_between(*first->second.box, *other->second.box);
      if (split) compare(logical, *first, *other, *split);
    }
  }

 private:
  using RankPart = std::pair<const std::uint32_t, Part>;

  void compare(std::uint32_t logical, const RankPart& first, const RankPart& other, std::size_t split) {
    const StoredTensor& a = map_.stored[first.second.stored];
    const StoredTensor& b = map_.stored[other.second.stored];
    if (!can_be_compared(a, b) || split >= a.shape.size()) return;
    const Dims strides = strides_of(map_, first.second.stored), other_strides = strides_of(map_, other.second.stored);
    const std::vector<std::size_t> order = order_of(strides);
    Dims sizes, inner, other_inner;
    for (const std::size_t dim : order) {
      const bool is_expanded = strides[dim] == 0 && other_strides[dim] == 0;  // one value along the dim, stored once
      if (is_expanded && dim == split) return;
      sizes.push_back(is_expanded ? 1 : a.shape[dim]);
      inner.push_back(strides[dim]);
      other_inner.push_back(other_strides[dim]);
    }
    const Rows rows(files_, a, sizes, inner), others(files_, b, sizes, other_inner);
    const auto position = static_cast<std::size_t>(std::find(order.begin(), order.end(), split) - order.begin());
    if (!are_equal(rows, others) || repeats(rows, position)) return;
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("is the same {} on tensor-parallel ranks {} and {}, but the plan in config.json takes the two "
                    "for parts of {}",
                    to_string(a.shape), first.first, other.first, to_string(map_.logical[logical].shape)))
        .in(map_.files[b.file].path)
        .tensor(map_.logical[logical].name)
        .hint(
            "if every rank has all of it (an embedding that is not parallel, replicated heads), take it out of "
            "base_model_tp_plan or say \"replicate\" for it; else a rank's file was copied over another's");
  }

  OpenedFiles files_;
  const TensorMap& map_;
};

}  // namespace

void validate_pieces_differ(Files& files, const TensorMap& map) {
  Comparison comparison(files, map);
  for (std::uint32_t logical = 0; logical < map.logical.size(); ++logical)
    if (!map.logical[logical].filler && map.logical[logical].role == TensorRole::kParameter) comparison.run(logical);
}

}  // namespace reshard
