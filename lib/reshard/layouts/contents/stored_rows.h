#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Whether StoredRows can read the tensor: elements of whole bytes, and as many dims as in the file.
bool has_plain_rows(const StoredTensor& stored);

/// The elements of a box of a stored tensor in rows along one of its dims: that of the smallest stride, so that a row is
/// one run of bytes even if the file has the matrix transposed.
class StoredRows {
 public:
  /// \param first  the box's first element in the stored tensor.
  /// \param sizes, strides  of the dims, from the outermost to the one along which rows run; at least one.
  StoredRows(OpenedFiles& files, const StoredTensor& stored, std::uint64_t first, Dims sizes, Dims strides);

  std::size_t dims() const { return sizes_.size(); }
  std::uint64_t size(std::size_t dim) const { return sizes_[dim]; }
  std::uint64_t elems() const { return sizes_.back(); }
  std::uint64_t count() const { return rows_in(0); }
  /// Rows from one index to the next along a dim.
  std::uint64_t rows_per_index(std::size_t dim) const { return rows_in(dim + 1); }

  /// `elems` elements of a row, from `first` on.
  std::vector<std::byte> read(std::uint64_t row, std::uint64_t first, std::uint64_t elems) const;

  /// Whether `holds(row, first, elems)` for all parts of all rows.
  template <typename Predicate>
  bool all_of(const Predicate& holds) const {
    for (std::uint64_t row = 0; row < count(); ++row)
      for (std::uint64_t first = 0; first < elems(); first += part_elems())
        if (!holds(row, first, std::min(part_elems(), elems() - first))) return false;
    return true;
  }

  /// Elements that are read at once: the bytes between strided ones count, which a file may claim to be many.
  std::uint64_t part_elems() const;

 private:
  std::uint64_t rows_in(std::size_t dim) const;

  OpenedFiles& files_;
  const StoredTensor& stored_;
  std::uint64_t elem_bytes_, first_;
  Dims sizes_, strides_;
};

/// Whether both have the same bytes in each row; the sizes must be equal. Reads whole rows only if a sample is equal.
bool have_equal_bytes(const StoredRows& a, const StoredRows& b);

/// The first element of a box of a stored tensor.
struct StoredPlace {
  std::uint32_t stored = 0;  // index into TensorMap::stored
  Dims begin;
};

/// Whether boxes of `size`, which is not empty, at two places have the same bytes. False if has_plain_rows is false for
/// either; true without reading if the two are one place of one file.
bool have_equal_bytes(OpenedFiles& files, const SourceMap& map, const StoredPlace& a, const StoredPlace& b,
                      const Dims& size);

/// Whether all elements of a box have the same bytes.
bool is_constant(OpenedFiles& files, const SourceMap& map, const StoredPlace& place, const Dims& size);

}  // namespace reshard
