#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/checkpoint.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/tensor_map.h"
#include "reshard/specs/model.h"

namespace reshard {

/// Gives a checkpoint that is as Transformers 5 has the model in memory (PackedExperts) the tensors of each expert, and
/// the names of the model's files: views of what is stored. No-op where nothing is packed that the model has apart.
/// \throws Error kBadInput for an expert that is there twice; kUnsupported for what cannot be taken apart, and for the
/// optimizer's states of packed experts.
void unpack_experts(Checkpoint& checkpoint, const ReadContext& context);

/// Does the same for a family whose files may contain either form.
/// \throws Error kUnsupported if they only contain stacks.
void separate_experts(Checkpoint& checkpoint);

/// A tensor of whole files, and what it is made of.
struct WholeEntry {
  std::string name;
  std::vector<std::uint32_t> logical;  // one, or matrices of one shape, one under the other
  std::uint32_t slices = 0;            // as StoredTensor::slices
};

/// One for each of `logical`, under its own name.
std::vector<WholeEntry> entries_of(std::span<const LogicalTensor> logical);

/// The same with all experts of a layer in one tensor, and with the names that a model has then (PackedExperts).
/// \throws Error kUnsupported for a model whose experts are never packed, are quantised, or differ in dtype or shape.
std::vector<WholeEntry> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model);

/// Whether save_pretrained of Transformers 5 packs the experts of such a model, whose `logical` are apart.
bool saves_packed(std::span<const LogicalTensor> logical, const Model& model);

}  // namespace reshard
