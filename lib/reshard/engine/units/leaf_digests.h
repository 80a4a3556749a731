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
// A tensor is divided into leaves by BlockGrid(dtype, shape, kLeafBytes). The first dim whose rows have at most 4 MiB
// is split into leaves of as many rows as fit in 4 MiB; the last leaf may be smaller. A leaf has one index of each dim
// before it. The digest is the SHA-256 of the leaves' SHA-256s, concatenated in C order. A single leaf's SHA-256 is the
// digest itself; without elements, the digest is the SHA-256 of an empty string. Python implementation:
// scripts/check-manifest.py.

/// The elements of one leaf.
Box leaf_of(DType dtype, const Dims& shape, std::size_t leaf);

/// Collects the leaf digests of one tensor in any order. Different leaves may be added by several threads at once.
class LeafDigests {
 public:
  LeafDigests(DType dtype, const Dims& shape);

  /// Adds the digest of the leaf that begins with element `first_elem`, in C order.
  void add(std::uint64_t first_elem, const Sha256Digest& leaf);
  std::uint64_t leaves() const { return leaves_.size(); }
  /// The same, by the leaf's index.
  void set(std::uint64_t leaf, const Sha256Digest& digest);
  /// Calls `visit` with the index and digest of each known leaf.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (known_[i]) visit(i, leaves_[i]);
  }
  /// Adds the leaves known to another share of the tensor.
  void merge(const LeafDigests& other);
  /// \throws Error kInternal if a leaf is missing.
  TensorDigest digest() const;

 private:
  BlockGrid grid_;
  std::vector<Sha256Digest> leaves_;
  std::vector<char> known_;
};

}  // namespace reshard
