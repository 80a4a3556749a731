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

/// Splits experts that are packed as Transformers 5 packs them in memory (PackedExperts) into one tensor per matrix,
/// under the names of the model's files. Reads no data, since the new tensors are views of the stored ones. No-op if
/// the model has no such experts, or if its own files contain packed experts as well.
/// \throws Error as unpack; kUnsupported for tensors of packed experts that cannot be split, and for optimizer states
/// of packed experts.
void unpack_experts(Checkpoint& checkpoint, const ReadContext& context);

/// Splits packed experts of a family whose files may contain either form.
/// \throws Error kUsage if the model is unknown; kUnsupported if files of this family contain only packed experts.
void separate_experts(Checkpoint& checkpoint);

/// Splits the packed experts of `a` or `b` if exactly one of these checkpoints, which will be compared, has packed
/// experts. No-op if that checkpoint has optimizer states.
void align_experts(Checkpoint& a, Checkpoint& b);

/// An entry of an output file with whole tensors, and the logical tensors that it contains.
struct OutputTensor {
  std::string name;
  std::vector<std::uint32_t> logical;  // one, or matrices of equal shape, stacked in this order
  Dims shape;                          // as stored: the tensor's, with a leading dim for experts if packed
};

/// Returns one entry per logical tensor, under the tensor's name.
std::vector<OutputTensor> entries_of(std::span<const LogicalTensor> logical);

/// Returns entries that pack all experts of a layer into one tensor, under the names in memory (PackedExperts).
/// \throws Error kUnsupported for a model whose experts are never packed, are quantised, or differ in dtype or shape.
std::vector<OutputTensor> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model);

/// Whether save_pretrained of Transformers 5 packs experts of this model that are separate in `logical`.
bool saves_packed(std::span<const LogicalTensor> logical, const Model& model);

}  // namespace reshard
