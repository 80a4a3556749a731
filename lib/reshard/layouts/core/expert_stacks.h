#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Splits experts that are packed as in the memory of Transformers 5 (PackedExperts) into one tensor for each matrix, under
/// the names of the model's files. The new tensors are parts of the stored ones: no data is read. No-op if the model has no
/// such experts, or has them packed in its files as well.
/// \throws Error as unpack; kUnsupported for tensors of packed experts that cannot be split, and for the optimizer's states
/// of packed experts.
void unpack_experts(Checkpoint& checkpoint, const ReadContext& context);

/// Does the same for a family whose files may contain either form.
/// \throws Error kUnsupported if they only contain stacks.
void separate_experts(Checkpoint& checkpoint);

/// Does so for one of two checkpoints that are to be compared, where only the other has its experts apart. No-op with
/// states of an optimizer.
void align_experts(Checkpoint& a, Checkpoint& b);

/// A tensor of whole files, and what it is made of.
struct WholeEntry {
  std::string name;
  std::vector<std::uint32_t> logical;  // one, or matrices of one shape, one under the other
  Dims shape;                          // in the file: that of the one, or a dim for the experts in front
};

/// One for each of `logical`, under its own name.
std::vector<WholeEntry> entries_of(std::span<const LogicalTensor> logical);

/// The entries with all experts of a layer in one tensor, under the names in memory (PackedExperts).
/// \throws Error kUnsupported for a model whose experts are never packed, are quantised, or differ in dtype or shape.
std::vector<WholeEntry> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model);

/// Whether save_pretrained of Transformers 5 packs the experts of such a model, whose `logical` are apart.
bool saves_packed(std::span<const LogicalTensor> logical, const Model& model);

}  // namespace reshard
