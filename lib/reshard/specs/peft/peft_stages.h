#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// The contents of an adapter, by the names of modules in the ranks, without kPeftPrefix.
struct AdapterContent {
  std::string name;
  std::map<std::string, std::set<std::string>> lora;  // module → "lora_A.weight", "lora_B.bias", "lora_embedding_A", …
  std::set<std::string> saved_modules;                // modules with a trained copy in the adapter (modules_to_save)
  std::set<std::string> plain;       // tensors of the base model in the adapter, by their names in its file
  std::set<std::string> transposed;  // modules of `lora` whose weight is stored as (inputs, outputs)
};

/// One pipeline rank of a model that PEFT has wrapped.
struct PeftStage {
  StageMetadata metadata;                              // metadata of all parameters, as the reference writes it
  std::map<std::string, std::set<std::string>> files;  // adapter → its tensors on this rank, by their names in files
};

/// Applies `adapters` to the stages of a base model.
/// \throws Error kUnsupported, naming the tensor, for unsupported tensors: a bias or a magnitude of projections for
///         grouped-query attention.
std::vector<PeftStage> peft_stages(const std::vector<StagePlan>& base, const std::vector<AdapterContent>& adapters);

}  // namespace reshard
