#pragma once

#include <optional>
#include <vector>

#include "reshard/layouts/map/region.h"
#include "reshard/specs/family/scheme.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// An entry of another program's checkpoint, with the model's numbers filled in.
struct PackedArray {
  Dims shape;
  std::vector<Dims> parts;  // the shape of each of its parameters
  Packing packing;
};

/// The sizes of the numbered dims of an entry (Scheme::Entry::numbered_dims) that has `shape`.
/// \throws Error kBadInput for another number of dims than the scheme has, or no elements.
Dims numbers_of(const Scheme::Entry& entry, const Dims& shape);

/// The array of an entry.
/// \param parts    the shape of each of its parameters in the model.
/// \param numbers  the sizes of its numbered dims.
/// \throws Error kBadInput if a shape is not one of the scheme's, kUnsupported if a size makes no sense with the numbers
/// of `model`.
PackedArray pack(const Scheme::Entry& entry, std::vector<Dims> parts, const Dims& numbers, const Model& model);

/// Like pack, for an entry of `shape` in a file. Returns std::nullopt if its shape does not determine that of a single
/// parameter.
/// \throws Error kBadInput as numbers_of.
std::optional<PackedArray> unpack_single(const Scheme::Entry& entry, const Dims& shape);

}  // namespace reshard
