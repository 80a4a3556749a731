#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/engine/units/blocks.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

// The digest of a tensor's elements, in C order and little-endian: the same in every layout, file format and mesh.
//
// A tensor is seen as leaves, BlockGrid(dtype, shape, kLeafBytes): along the first dim of which one index has at most
// 4 MiB, as many indices as fit 4 MiB make one leaf, and the last leaf has the rest; the dims before it are taken one
// index at a time. The digest is the SHA-256 of the leaves' SHA-256s, one after the other in C order, or, of one leaf,
// its SHA-256 itself; without elements, the SHA-256 of nothing. scripts/check-manifest.py has it in Python.

/// The elements of one leaf.
Box leaf_of(DType dtype, const Dims& shape, std::size_t leaf);

/// Takes the leaves of one tensor in any order. The leaves of different indices may come from several threads.
class LeafDigests {
 public:
  LeafDigests(DType dtype, const Dims& shape);

  /// The digest of the leaf that begins with element `first_elem`, as C order counts them.
  void add(std::uint64_t first_elem, const Sha256Digest& leaf);
  std::uint64_t leaves() const { return leaves_.size(); }
  /// Likewise, by the leaf's index.
  void set(std::uint64_t leaf, const Sha256Digest& digest);
  /// Calls `visit` with the index and the digest of each leaf that is known.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (known_[i]) visit(i, leaves_[i]);
  }
  /// Takes those that another share of the tensor has.
  void merge(const LeafDigests& other);
  /// \throws Error kInternal if a leaf is missing.
  TensorDigest digest() const;

 private:
  BlockGrid grid_;
  std::vector<Sha256Digest> leaves_;
  std::vector<char> known_;
};

}  // namespace reshard
