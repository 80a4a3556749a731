#include "reshard/layouts/contents/stored_rows.h"

#include <cstring>
#include <utility>

namespace reshard {
namespace {

constexpr std::uint64_t kSampleElems = 256;
constexpr std::uint64_t kPartElems = 1 << 16;  // per read

}  // namespace

bool has_plain_rows(const StoredTensor& stored) {
  return bits(stored.dtype) % 8 == 0 && !stored.shape.empty() && stored.file_shape().size() == stored.shape.size();
}

StoredRows::StoredRows(OpenedFiles& files, const StoredTensor& stored, std::uint64_t first, Dims sizes, Dims strides)
    : files_(files),
      stored_(stored),
      elem_bytes_(bits(stored.dtype) / 8),
      first_(first),
      sizes_(std::move(sizes)),
      strides_(std::move(strides)) {}

std::vector<std::byte> StoredRows::read(std::uint64_t row, std::uint64_t first, std::uint64_t elems) const {
  const std::uint64_t stride = strides_.back();
  std::uint64_t at = first_ + first * stride;
  for (std::size_t d = sizes_.size() - 1; d-- > 0;) {
    at += row % sizes_[d] * strides_[d];
    row /= sizes_[d];
  }
  std::vector<std::byte> span(((elems - 1) * stride + 1) * elem_bytes_);
  files_.at(stored_.file).read_at(stored_.offset_bytes + at * elem_bytes_, span);
  if (stride == 1) return span;
  std::vector<std::byte> bytes(elems * elem_bytes_);
  for (std::uint64_t i = 0; i < elems; ++i)
    std::memcpy(bytes.data() + i * elem_bytes_, span.data() + i * stride * elem_bytes_, elem_bytes_);
  return bytes;
}

std::uint64_t StoredRows::part_elems() const {
  return std::max<std::uint64_t>(1, kPartElems / std::max<std::uint64_t>(1, strides_.back()));
}

std::uint64_t StoredRows::rows_in(std::size_t dim) const {
  std::uint64_t rows = 1;
  for (std::size_t d = dim; d + 1 < sizes_.size(); ++d) rows *= sizes_[d];
  return rows;
}

bool have_equal_bytes(const StoredRows& a, const StoredRows& b) {
  const std::uint64_t middle = a.count() / 2,
                      sample = std::min({kSampleElems, a.elems(), a.part_elems(), b.part_elems()});
  if (a.read(middle, 0, sample) != b.read(middle, 0, sample)) return false;
  const StoredRows& wider = a.part_elems() < b.part_elems() ? a : b;  // has the smaller parts
  return wider.all_of([&](std::uint64_t row, std::uint64_t first, std::uint64_t elems) {
    return a.read(row, first, elems) == b.read(row, first, elems);
  });
}

bool have_equal_bytes(OpenedFiles& files, const SourceMap& map, const StoredPlace& a, const StoredPlace& b,
                      const Dims& size) {
  const StoredTensor &in_a = map.stored[a.stored], &in_b = map.stored[b.stored];
  if (in_a.dtype != in_b.dtype || !has_plain_rows(in_a) || !has_plain_rows(in_b)) return false;
  const Dims strides_a = in_a.strides(), strides_b = in_b.strides();
  const std::uint64_t first_a = in_a.view().offset(a.begin), first_b = in_b.view().offset(b.begin);
  const bool one_place = in_a.file == in_b.file && in_a.offset_bytes == in_b.offset_bytes && first_a == first_b;
  if (one_place && strides_a == strides_b) return true;
  Dims sizes, inner_a, inner_b;
  for (const std::size_t dim : dims_by_stride(strides_a)) {
    const bool goes_on = !sizes.empty() && inner_a.back() == size[dim] * strides_a[dim] &&
                         inner_b.back() == size[dim] * strides_b[dim];  // contiguous with the next index in both
    if (goes_on) {
      sizes.back() *= size[dim];
      inner_a.back() = strides_a[dim];
      inner_b.back() = strides_b[dim];
      continue;
    }
    sizes.push_back(size[dim]);
    inner_a.push_back(strides_a[dim]);
    inner_b.push_back(strides_b[dim]);
  }
  return have_equal_bytes({files, in_a, first_a, sizes, inner_a}, {files, in_b, first_b, sizes, inner_b});
}

bool is_constant(OpenedFiles& files, const SourceMap& map, const StoredPlace& place, const Dims& size) {
  StoredPlace next = place;
  for (std::size_t d = 0; d < size.size(); ++d) {  // compares the box with itself, shifted along each dim
    if (size[d] == 1) continue;
    Dims rest = size;
    --rest[d];
    next.begin = place.begin;
    ++next.begin[d];
    if (!have_equal_bytes(files, map, place, next, rest)) return false;
  }
  return true;
}

}  // namespace reshard
