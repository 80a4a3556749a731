#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// The part of a model that is partitioned: a language model, perhaps beside vision towers, projectors and the like.
struct LanguageModel {
  std::shared_ptr<const Family> family;  // null: not known
  ModelConfig config;                    // of it alone: the text_config of a config.json that has one
  bool is_part = false;                  // the checkpoint has other tensors beside it
  bool lacks_config = false;             // models of this model_type have a text_config, but this config.json has none
  std::string architecture;  // the class that saved the whole, "LlamaForCausalLM"; empty where it is not said
  std::string unknown_type;  // what text_config says, where the family is the one that the larger model names instead
};

/// The language model described by `config`, of the family `spec`, else of the built-in one of its model_type.
/// \throws Error kBadInput, naming config.json, if a text_config is no object.
LanguageModel find_language_model(const ModelConfig& config, const std::shared_ptr<const Family>& spec = {});

/// That the model_type is not known or not there, in words.
std::string describe_unknown_type(const ModelConfig& config);

/// That a checkpoint's tensors are those of the built-in families `fitting`, in words that propose to choose one; empty
/// where there are none.
std::string propose_families(const std::vector<std::string>& fitting);

/// The error for a model_type that is not known or not there. `fitting` are the families that its tensors fit, the most
/// likely first.
Error unknown_model_type(const ModelConfig& config, const std::vector<std::string>& fitting = {});

/// The family with the names that a checkpoint gives its modules, `names` among others: without or with another prefix
/// ("language_model.model."), as whole models, base models and parts of larger models are saved with different ones.
std::shared_ptr<const Family> with_prefixes_of(std::shared_ptr<const Family> family,
                                               const std::unordered_set<std::string_view>& names);

/// The model of a config.json whose model_type is known.
/// \throws also unknown_model_type.
Model instantiate(const ModelConfig& config, const HoldsName& holds = {});

/// The model of a checkpoint with tensors of these names. What the family does not list but every rank needs is among
/// the parameters: buffers of rotary embeddings, and what lies beside the language model of a larger one.
Model instantiate(const LanguageModel& model, const std::unordered_set<std::string_view>& names);

}  // namespace reshard
