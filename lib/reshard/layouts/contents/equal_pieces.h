#pragma once

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Validates that no tensor that `map` joins from several tensor-parallel ranks is equal on two of them. A trained
/// matrix does not repeat itself, so equal pieces are either replicas that the plan mistakes for parts (an embedding
/// that is not parallel, replicated heads) or the result of copying one file over another. Ignores pieces that consist
/// of equal slices, such as zeros. Compares the first rank with its neighbor and with the rank half-way, which finds
/// replicated heads in either order. Reads a few elements per tensor, and whole pieces only if these are equal.
/// \throws Error kBadInput, naming the file and the tensor; kIo.
void validate_pieces_differ(Files& files, const SourceMap& map);

/// Validates that different key/value heads on different tensor-parallel ranks are not equal. Equal heads are replicas,
/// so config.json declares more heads than the model has. Checks the first layer that has such heads, and ignores
/// constant heads, such as zeros.
/// \throws Error kBadInput, naming the file and the tensor; kIo.
void validate_heads_differ(Files& files, const SourceMap& map, const Model& model);

}  // namespace reshard
