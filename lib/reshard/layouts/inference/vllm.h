#pragma once

#include <array>
#include <cstddef>
#include <iterator>

#include "reshard/layouts/core/layout.h"

// What vLLM and SGLang call the tensors of their models, as data for vllm.cpp alone: versions, architectures, options.
namespace reshard::vllm {

/// How a version names what is not named alike in all. Names of experts stand after their layer's module.
struct Version {
  const char* name;
  bool has_scales;           // each attention has scales of 1.0 (set_default_quant_scales)
  const char* experts;       // of w13 and w2
  const char* qwen3_router;  // qwen3_moe's; others' is "gate"
  const char* shared_expert;
  const char* shared_expert_gate;
  const char* expert_map;  // with expert parallelism: which experts a rank has; null: not stored
  const char* gpt_oss_qkv;
  bool is_sglang = false;
};

/// Those that are known, the newest first. A name is the alphabetically first of all that a module tree has for one
/// tensor, so that it moves with the tree.
inline constexpr Version kVersions[] = {
    {"main-2026-08-17", true, "experts.routed_experts", "experts.gate", "experts._shared_experts._layer",
     "experts._shared_experts._layer.expert_gate", nullptr, "qkv_proj"},
    {"0.24.0", true, "experts.routed_experts", "experts.gate", "experts._shared_experts._layer",
     "experts._shared_experts._layer.expert_gate", "experts.routed_experts._expert_map", "qkv_proj"},
    {"0.23.0", true, "experts", "experts.runner.gate", "shared_expert", "shared_expert.expert_gate",
     "experts._expert_map", "qkv_proj"},
    {"0.19.1", true, "experts", "experts._gate", "experts._shared_experts", "experts._shared_experts.expert_gate",
     "experts._expert_map", "qkv_proj"},
    {"0.14.0", true, "experts", "gate", "experts._shared_experts", "experts._shared_experts.expert_gate",
     "experts._expert_map", "qkv_proj"},
    {"0.11.0", false, "experts", "gate", "shared_expert", "shared_expert_gate", "experts.expert_map", "qkv"},
    {"0.10.0", false, "experts", "gate", "shared_expert", "shared_expert_gate", nullptr, "qkv"},
    {"sglang-0.5.6", false, "experts", "gate", "shared_expert", "shared_expert_gate", nullptr, nullptr, true},
};

inline constexpr auto kVersionNames = [] {
  std::array<const char*, std::size(kVersions)> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kVersions[i].name;
  return names;
}();

inline constexpr LayoutOption kVersion{"vllm-version", LayoutOption::Type::kChoice,
                                       "Version of vLLM or SGLang that loads the files", kVersionNames,
                                       kVersionNames[0]};
inline constexpr LayoutOption kExpertParallel{"enable-expert-parallel", LayoutOption::Type::kFlag,
                                              "Give each rank whole experts, for vLLM run with the same option"};

/// What is known of a model_type's class.
struct Architecture {
  const char* model_type;
  bool has_head = true;        // an lm_head of its own, which is stored in place of a tied embedding
  bool takes_f16 = true;       // vLLM serves it in float16
  bool in_sglang = false;      // SGLang's class has the same tensors
  bool takes_experts = false;  // spread over ranks
};

inline constexpr Architecture kArchitectures[] = {
    {"gemma", false},
    {"gemma2", false, false},
    {"gemma3_text", true, false},
    {"gpt_oss"},
    {"granite"},
    {"llama", true, true, true},
    {"mistral", true, true, true},
    {"mixtral", true, true, true, true},
    {"phi3", true, true, true},
    {"qwen2", true, true, true},
    {"qwen2_moe", true, true, true, true},
    {"qwen3", true, true, true},
    {"qwen3_moe", true, true, true, true},
};

/// What a checkpoint may be one of.
struct Form {
  const Version* version = &kVersions[0];
  bool expert_parallel = false;
};

}  // namespace reshard::vllm
