#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// What one adapter holds, by the names that modules have in the ranks, without kPeftPrefix.
struct AdapterContent {
  std::string name;
  std::map<std::string, std::set<std::string>> lora;  // module → "lora_A.weight", "lora_B.bias", "lora_embedding_A", …
  std::set<std::string> saved_modules;                // of which it holds a trained copy (modules_to_save)
  std::set<std::string> plain;                        // tensors of the base model that it holds, as its file names them
  std::set<std::string> transposed;                   // modules of `lora` whose weight is stored as (inputs, outputs)
};

/// A pipeline rank's share of a model that PEFT has wrapped.
struct PeftStage {
  StageMetadata metadata;                              // of everything, as the reference writes it
  std::map<std::string, std::set<std::string>> files;  // adapter → its tensors on this rank, as files name them
};

/// What the stages of a base model become under `adapters`.
/// \throws Error kUnsupported, naming the tensor, for what cannot be laid out: a bias or a magnitude of projections for
/// grouped-query attention.
std::vector<PeftStage> peft_stages(const std::vector<StagePlan>& base, const std::vector<AdapterContent>& adapters);

}  // namespace reshard
