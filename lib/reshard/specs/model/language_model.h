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

/// The part of a model that is partitioned: a language model, possibly next to vision towers, projectors and others.
struct LanguageModel {
  std::shared_ptr<const Family> family;  // null if unknown
  ModelConfig config;                    // configuration of the language model: the text_config if config.json has one
  bool is_part = false;                  // the checkpoint contains other tensors
  bool lacks_config = false;             // models of this model_type have a text_config, but this config.json lacks it
  std::string architecture;              // class that saved the whole model, "LlamaForCausalLM"; empty if not declared
  std::string unknown_type;              // model_type in text_config, if the larger model's family was used instead
};

/// Returns the language model that `config` describes, with the family `spec`, or else the built-in family of its
/// model_type.
/// \throws Error kBadInput, naming config.json, if text_config is not an object.
LanguageModel find_language_model(const ModelConfig& config, const std::shared_ptr<const Family>& spec = {});

/// Returns the message that the model_type is unknown or missing.
std::string describe_unknown_type(const ModelConfig& config);

/// Returns the message that a checkpoint's tensors match the built-in families `fitting`, with the advice to choose
/// one; empty if `fitting` is empty.
std::string propose_families(const std::vector<std::string>& fitting);

/// Returns the error for an unknown or missing model_type. `fitting` are the families that match its tensors, most
/// likely first.
Error unknown_model_type(const ModelConfig& config, const std::vector<std::string>& fitting = {});

/// Adapts the family to the prefix that a checkpoint with tensors `names` uses ("language_model.model."). Whole models,
/// base models and parts of larger models are saved with different prefixes.
std::shared_ptr<const Family> with_prefixes_of(std::shared_ptr<const Family> family,
                                               const std::unordered_set<std::string_view>& names);

/// Returns the language model under the names that it has in the larger model that NxD Inference loads it from, if any.
/// The family has Family::inference.
LanguageModel with_inference_prefix(LanguageModel found);

/// Whether any family's tensor of this name is a buffer of attention, which is not trained: "….rotary_emb.inv_freq",
/// "….attn.masked_bias".
bool is_attention_buffer(std::string_view name);

/// Returns the model of a config.json whose model_type is known.
/// \throws also unknown_model_type.
Model instantiate(const ModelConfig& config, const HoldsName& holds = {});

/// Returns the model of a checkpoint whose tensors have these names. Its parameters include tensors that the family
/// does not list but every rank needs: buffers of rotary embeddings, and the other parts of a larger model.
Model instantiate(const LanguageModel& model, const std::unordered_set<std::string_view>& names);

}  // namespace reshard
