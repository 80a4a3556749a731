#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/layouts/map/region.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/family/scheme.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// An entry of another program's checkpoint, with the model's sizes filled in.
struct PackedArray {
  Dims shape;
  std::vector<Dims> parts;  // the shape of each of its parameters
  Packing packing;
};

/// Returns the tensor that an entry has instead of `parameter`, computed from it.
/// \param name  its name.
LogicalTensor changed_tensor(const LogicalTensor& parameter, const std::string& name, const ValueChange& change);

/// Notes that a target contains sums or quotients in place of parameters. No-op if `names` is empty.
/// \param names  what they are: "layers.*.bias + 1".
void note_rounded(const std::set<std::string>& names, Notes& notes);

/// Adds a parameter to `map` that follows from changed tensors in it, which become parts.
/// \param names, changes  the names of these, and the change of each.
void add_restored(SourceMap& map, const std::string& parameter, std::vector<std::string> names,
                  std::vector<ValueChange> changes);

/// Returns the sizes of the numbered dims of an entry (SchemeEntry::numbered_dims) that has `shape`.
/// \throws Error kBadInput if the number of dims differs from the scheme's or if there are no elements.
Dims numbers_of(const SchemeEntry& entry, const Dims& shape);

/// Returns the array of an entry.
/// \param parts    the shape of each of its parameters in the model.
/// \param numbers  the sizes of its numbered dims.
/// \throws Error kBadInput if a shape does not match the scheme, kUnsupported if a size is not valid for the numbers of
/// `model`.
PackedArray pack(const SchemeEntry& entry, std::vector<Dims> parts, const Dims& numbers, const Model& model);

/// Like pack, for an entry of `shape` in a file that contains a single parameter. Returns std::nullopt if the entry's
/// shape does not determine the parameter's.
/// \throws Error kBadInput like numbers_of.
std::optional<PackedArray> unpack_single(const SchemeEntry& entry, const Dims& shape);

}  // namespace reshard
