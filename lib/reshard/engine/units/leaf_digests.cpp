#include "reshard/engine/units/leaf_digests.h"

#include <algorithm>
#include <span>

#include "reshard/base/error.h"

namespace reshard {

Box leaf_of(DType dtype, const Dims& shape, std::size_t leaf) {
  return BlockGrid(dtype, shape, kLeafBytes).block(leaf);
}

LeafDigests::LeafDigests(DType dtype, const Dims& shape)
    : grid_(dtype, shape, kLeafBytes), leaves_(grid_.count()), known_(grid_.count()) {}

void LeafDigests::add(std::uint64_t first_elem, const Sha256Digest& leaf) {
  set(grid_.block_at(first_elem), leaf);
}

void LeafDigests::set(std::uint64_t leaf, const Sha256Digest& digest) {
  leaves_.at(leaf) = digest;
  known_.at(leaf) = true;
}

void LeafDigests::merge(const LeafDigests& other) {
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    if (other.known_.at(i) == 0) continue;
    leaves_[i] = other.leaves_[i];
    known_[i] = true;
  }
}

TensorDigest LeafDigests::digest() const {
  if (!std::all_of(known_.begin(), known_.end(), [](char known) { return known != 0; }))
    throw Error(ErrorKind::kInternal, "a part of a tensor was not hashed");
  if (leaves_.empty()) return {sha256({}), {}};
  if (leaves_.size() == 1) return {leaves_.front(), {}};
  return {sha256(std::as_bytes(std::span(leaves_))), leaves_};
}

}  // namespace reshard
