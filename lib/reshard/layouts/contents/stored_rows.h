#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Whether StoredRows can read the tensor: its elements are whole bytes, and it has the same dims as in the file.
bool has_plain_rows(const StoredTensor& stored);

/// A box of a stored tensor as rows along the dim with the smallest stride. A row is therefore one run of bytes, even
/// if the matrix is stored transposed.
class StoredRows {
 public:
  /// \param first  First element of the box in the stored tensor.
  /// \param sizes, strides  Sizes and strides of the dims, ending with the dim of the rows; at least one dim.
  StoredRows(OpenedFiles& files, const StoredTensor& stored, std::uint64_t first, Dims sizes, Dims strides);

  std::size_t dims() const { return sizes_.size(); }
  std::uint64_t size(std::size_t dim) const { return sizes_[dim]; }
  std::uint64_t elems() const { return sizes_.back(); }
  std::uint64_t count() const { return rows_in(0); }
  /// Number of rows per index of `dim`.
  std::uint64_t rows_per_index(std::size_t dim) const { return rows_in(dim + 1); }

  /// Reads `elems` elements of a row, starting at `first`.
  std::vector<std::byte> read(std::uint64_t row, std::uint64_t first, std::uint64_t elems) const;

  /// Whether `holds(row, first, elems)` is true for every part of every row.
  template <typename Predicate>
  bool all_of(const Predicate& holds) const {
    for (std::uint64_t row = 0; row < count(); ++row)
      for (std::uint64_t first = 0; first < elems(); first += part_elems())
        if (!holds(row, first, std::min(part_elems(), elems() - first))) return false;
    return true;
  }

  /// Elements per read. Limited by the bytes between strided elements, since a file may declare large strides.
  std::uint64_t part_elems() const;

 private:
  std::uint64_t rows_in(std::size_t dim) const;

  OpenedFiles& files_;
  const StoredTensor& stored_;
  std::uint64_t elem_bytes_, first_;
  Dims sizes_, strides_;
};

/// Whether all rows have equal bytes. Requires equal sizes. Reads whole rows only if a sample is equal.
bool have_equal_bytes(const StoredRows& a, const StoredRows& b);

/// Position of the first element of a box in a stored tensor.
struct StoredPlace {
  std::uint32_t stored = 0;  // index into TensorMap::stored
  Dims begin;
};

/// Whether two boxes of `size` have equal bytes. Requires that `size` is not empty. Returns false if has_plain_rows is
/// false for either tensor, and true without reading if both boxes are stored at the same place.
bool have_equal_bytes(OpenedFiles& files, const SourceMap& map, const StoredPlace& a, const StoredPlace& b,
                      const Dims& size);

/// Whether all elements of a box are equal, byte by byte.
bool is_constant(OpenedFiles& files, const SourceMap& map, const StoredPlace& place, const Dims& size);

}  // namespace reshard
