#pragma once

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Validates that the tensors that `map` joins from several tensor-parallel ranks are not the same on two of them: no
/// trained matrix repeats itself, so equal pieces are replicas that a plan takes for parts (an embedding that is not
/// parallel, replicated heads) or a file that was copied over another. Pieces made of equal slices, such as zeros, show
/// nothing. Reads a few elements per tensor, and whole pieces only if those are equal; compares the first rank with its
/// neighbor and with the rank half-way, where replicated heads are in either order.
/// \throws Error kBadInput, naming the file and the tensor; kIo.
void validate_pieces_differ(Files& files, const SourceMap& map);

/// Validates that key/value heads on several tensor-parallel ranks, of the first layer that has some, are not replicas:
/// equal ones are, if config.json counts more heads than the model has. Heads of one value, such as zeros, show nothing.
/// \throws Error kBadInput, naming the file and the tensor; kIo.
void validate_heads_differ(Files& files, const SourceMap& map, const Model& model);

}  // namespace reshard
