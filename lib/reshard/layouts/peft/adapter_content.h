#pragma once

#include <span>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/peft/adapter.h"
#include "reshard/specs/peft/peft_stages.h"

namespace reshard {

/// Returns the tensors of each adapter of `context`, under the names in its own files.
std::vector<std::vector<LogicalTensor>> tensors_by_adapter(const TargetContext& context);

/// Validates that lora_A and lora_B form pairs: PEFT initialises a missing one without a word.
/// \throws Error kBadInput, naming the missing tensor.
void validate_pairs(const Adapter& adapter, std::span<const LogicalTensor> tensors);

/// Returns the contents of an adapter by module, in which `fused` linears are one module. Validates the names, pairs and
/// shapes of its tensors against its config and its base model.
/// \param fused    Linears that an adapter must adapt together and in the same way, or not at all; may be empty.
/// \param tensors  All tensors of the adapter, under the names in its own files.
/// \throws Error kBadInput or kUnsupported, naming the tensor or the module.
AdapterContent adapter_content(const Adapter& adapter, const Model& model, const std::vector<FusedLayer>& fused,
                               std::span<const LogicalTensor> tensors);

}  // namespace reshard
