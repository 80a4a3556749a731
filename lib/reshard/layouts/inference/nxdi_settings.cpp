#include "reshard/layouts/inference/nxdi_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/torch_storage.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/inference/medusa_heads.h"
#include "reshard/layouts/inference/nxdi_quantization.h"
#include "reshard/layouts/inference/served_adapters.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/neuron_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostHeadRows = std::uint64_t{1} << 32;  // more than any vocabulary

/// Has an effect on other models than in layouts of training.
constexpr LayoutOption kOwnFuseQkv{.name = kFuseQkv.name, .type = LayoutOption::Type::kFlag, .help = kFuseQkv.help};

constexpr NxdiSetting kSettings[] = {
    {&kOwnFuseQkv, "fused_qkv", 0},
    {&kVocabParallel, "vocab_parallel", 0},
    {&kFusedMoe, "moe_fused_nki_kernel_enabled", 0},
    {&kShardOnIntermediate, "blockwise_matmul_config.use_shard_on_intermediate_dynamic_while", 0},
    {&kContextDegree, "cp_degree", 1},
    {&kMlpContextDegree, "mlp_cp_degree", 1},
    {&kAttentionDataDegree, "attention_dp_degree", 1},
    {&kMoeExpertDegree, "moe_ep_degree", 1},
    {&kMoeTensorDegree, "moe_tp_degree", 1},
    {&kPromptExpertDegree, "hybrid_sharding_config.moe_cte_ep_degree", 0},
    {&kTokenExpertDegree, "hybrid_sharding_config.moe_tkg_ep_degree", 0},
    {&kPaddedHidden, "padded_hidden_size", 0},
    {&kPaddedIntermediate, "padded_intermediate_size", 0},
    {&kHeadMultiple, "lm_head_multiple", 0},
    {&kSplitHeadBias, "on_device_sampling_config", 0},
    {&kDeclaredDtypes, "cast_type", 0},
    {&kSkipGamma, "fused_rmsnorm_skip_gamma", 0},
    {&kEagleInputNorm, "enable_eagle_draft_input_norm", 0},
    {&kMxfp4Compute, "is_mxfp4_compute", 0},
    {&kShuffleModel, "is_full_model_shuffled", 0},
    {&kHiddenActBias, "hidden_act_bias", 0},
};

/// Refuses sums with other numbers than 1, and columns in another order.
void validate_plain_values(const Json& settings, const fs::path& path) {
  const auto has = [&](std::string_view flag) { return neuron_flag(settings, flag, path); };
  const Json* dtype = find_key(settings, "quantization_dtype");
  if (has("is_mxfp4_compute") && !(has("quantized") && dtype != nullptr && *dtype == "f4e2m1fn_x4"))
    throw Error(ErrorKind::kUnsupported, "has is_mxfp4_compute without quantized and quantization_dtype f4e2m1fn_x4")
        .in(path)
        .hint("compile the model with both");
  const Json* bias = find_key(settings, "hidden_act_bias");
  if (has("is_mxfp4_compute") && bias != nullptr && !bias->is_null() && *bias != 0 && *bias != 1)
    throw Error(ErrorKind::kUnsupported, fmt::format("has is_mxfp4_compute and hidden_act_bias {}", json_text(*bias)))
        .in(path)
        .hint("only biases 0 and 1 are supported; to read its weights, use the model that it was compiled from");
  if (has("is_full_model_shuffled") && has("is_eagle_draft") && has("is_eagle3"))
    throw Error(ErrorKind::kUnsupported,
                "has is_full_model_shuffled: the columns of the EAGLE-3 draft's fc.weight are in another order")
        .in(path)
        .hint(
            "compile the draft without is_full_model_shuffled; to read its weights, use the draft that it was compiled "
            "from");
}

/// Whether the compiled model takes weights that NxD Inference has multiplied by those of a norm.
bool skips_gamma(const Json& settings, const fs::path& path) {
  const auto has = [&](std::string_view flag) { return neuron_flag(settings, flag, path); };
  return has("fused_rmsnorm_skip_gamma") && !has("sequence_parallel_enabled") &&
         (has("mlp_kernel_enabled") || has("mlp_tkg_nki_kernel_enabled") || has("qkv_kernel_enabled"));
}

constexpr std::string_view kScale = ".scale";  // of quantised weights
constexpr const char* kTextConfig = "text_config";
constexpr const char* kDraftConfig = "fused_spec_config.draft_config";

/// Settings of EAGLE's drafts, and what their families are called after the model_type of the draft.
struct EagleVariant {
  const char* flag;
  const char* family;
};
constexpr EagleVariant kEagleVariants[] = {{"is_eagle3", "_eagle3"}, {"is_eagle_draft", "_eagle"}};

/// Returns what `settings` need that is not written; empty if nothing.
std::string unwritten(const Json& settings, const fs::path& path) {
  const auto has = [&](std::string_view flag) { return neuron_flag(settings, flag, path); };
  // The product depends on one of the kernel's two flags, also where the projections are not fused.
  if (skips_gamma(settings, path) &&
      (has("fused_qkv") ? has("qkv_nki_kernel_enabled") && !has("qkv_kernel_enabled") : has("qkv_kernel_enabled")))
    return fmt::format("fused_rmsnorm_skip_gamma with {}: weights of attention in another form",
                       has("fused_qkv") ? "qkv_nki_kernel_enabled alone" : "qkv_kernel_enabled and without fused_qkv");
  const Json* stages = find_key(settings, "pp_degree");
  if (stages != nullptr && stages->is_number_unsigned() && *stages > 1)
    return fmt::format("pp_degree {}: the weights of pipeline-parallel ranks", stages->get<std::uint64_t>());
  return {};
}

/// Returns what a compiled model with these settings loads instead of the files of ranks below tp_degree; empty if nothing.
std::string other_ranks(const Json& settings) {
  const Json* loads_ranks = find_key(settings, "save_sharded_checkpoint");
  if (loads_ranks != nullptr && *loads_ranks == false)
    return "save_sharded_checkpoint false: weights that it shards when it loads the model";
  const auto number = [&](const char* key, std::uint64_t absent) {
    const Json* value = find_key(settings, key);
    if (value == nullptr || value->is_null()) return absent;
    return value->is_number_unsigned() ? value->get<std::uint64_t>() : UINT64_MAX;
  };
  const std::uint64_t tp = number("tp_degree", 0);
  if (tp == 0) return {};
  const std::uint64_t first = number("start_rank_id", 0), count = number("local_ranks_size", tp),
                      all = number("world_size", tp);
  if (all <= tp && count > 0 && count <= tp && first <= tp - count) return {};
  const auto text = [&](const char* key) {
    const Json* value = find_key(settings, key);
    return value == nullptr ? "null" : json_text(*value);
  };
  return fmt::format(
      "start_rank_id {}, local_ranks_size {} and world_size {}: ranks that do not exist with tp_degree {}",
      text("start_rank_id"), text("local_ranks_size"), text("world_size"), tp);
}

/// Keys of config.json on which the compiled program depends, in the words of several families.
constexpr const char* kComparedKeys[] = {"model_type",
                                         "hidden_size",
                                         "d_model",
                                         "num_hidden_layers",
                                         "n_layers",
                                         "num_attention_heads",
                                         "n_heads",
                                         "num_key_value_heads",
                                         "intermediate_size",
                                         "num_experts",
                                         "moe_intermediate_size",
                                         "vocab_size",
                                         "head_dim",
                                         "num_local_experts",
                                         "n_routed_experts",
                                         "intermediate_size_mlp",
                                         "attention_bias",
                                         "mlp_bias",
                                         "ffn_config.moe_num_experts",
                                         "ffn_config.ffn_hidden_size",
                                         "attn_config.kv_n_heads"};

/// Returns the dtype of a setting: "bfloat16" or "torch.bfloat16".
DType torch_dtype(std::string name, const fs::path& path) {
  constexpr std::string_view kModule = "torch.";
  if (name.starts_with(kModule)) name.erase(0, kModule.size());
  if (const auto dtype = dtype_from_torch_name(name)) return *dtype;
  throw Error(ErrorKind::kBadInput, fmt::format("has the torch_dtype {}, which is unknown", printable(name))).in(path);
}

std::string last_key(const NxdiSetting& setting) {
  const std::string key = setting.key;
  return key.substr(key.rfind('.') + 1);
}

}  // namespace

std::span<const NxdiSetting> nxdi_settings() {
  return kSettings;
}

const LayoutOption* nxdi_option(const std::string& setting) {
  for (const NxdiSetting& one : kSettings)
    if (one.key == setting) return one.option;
  return nullptr;
}

ConfigValue setting_in(const OptionValues& form, const std::string& key, const Model& model) {
  for (const NxdiSetting& setting : kSettings) {
    if (key != last_key(setting)) continue;
    if (setting.option->type == LayoutOption::Type::kFlag) return form.flag(setting.option->name);
    return form.number(*setting.option).value_or(setting.absent);
  }
  const Json* value = model.config == nullptr ? nullptr : find_key(*model.config, key);
  if (value == nullptr || value->is_null()) value = find_key(*model.family->defaults, key);
  if (value != nullptr && value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  std::vector<std::string> known;
  for (const NxdiSetting& setting : kSettings) known.push_back(last_key(setting));
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("\"when\" reads {}, which is neither a setting of NxD Inference nor in config.json", printable(key)))
      .hint("settings are " + join(known, ", "));
}

std::uint32_t degree_in(const OptionValues& form, const LayoutOption& option) {
  return static_cast<std::uint32_t>(form.number(option).value_or(1));
}

void erase_usual_degree(OptionValues& form, std::uint32_t tp) {
  if (form.number(kDraftDegree) == tp) form.erase(kDraftDegree.name);
}

namespace {

CompiledModel compiled_of(const Json& settings, const fs::path& path) {
  validate_plain_values(settings, path);
  CompiledModel compiled{path, {}, {}, {}, unwritten(settings, path)};
  const auto number = [&](const char* key) -> std::optional<std::uint64_t> {
    const Json* value = find_key(settings, key);
    if (value == nullptr || !value->is_number_unsigned()) return std::nullopt;
    return value->get<std::uint64_t>();
  };
  for (const NxdiSetting& setting : kSettings) {
    if (setting.option->type == LayoutOption::Type::kFlag) {
      const Json* value = find_key(settings, setting.key);
      compiled.options.set_flag(
          setting.option->name,
          value != nullptr && (*value == true || *value == 1 || *value == "as-declared" || value->is_object()));
    } else if (const auto degree = number(setting.key); degree && *degree > setting.absent) {
      compiled.options.set_number(setting.option->name, *degree);
    }
  }
  compiled.options.set_flag(kSkipGamma.name, skips_gamma(settings, path));
  // lm_head_pad is not a number, and nothing else depends on where sampling runs.
  const Json* head = find_key(settings, "lm_head_pad");
  if (head != nullptr && *head == true) {
    std::optional<std::uint64_t> multiple = 1;
    for (const char* key : {"tp_degree", "logical_nc_config", "lm_head_pad_alignment_size"})
      if (multiple) multiple = checked_mul(*multiple, number(key).value_or(1));
    if (!multiple || *multiple == 0 || *multiple > kMostHeadRows)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("tp_degree x logical_nc_config x lm_head_pad_alignment_size pad the output head to a "
                              "multiple of more than {} rows, or of none",
                              kMostHeadRows))
          .in(path);
    compiled.options.set_number(kHeadMultiple.name, *multiple);
  } else {
    compiled.options.erase(kSplitHeadBias.name);
  }
  if (auto quantization = declared_quantization(settings); quantization && !compiled.options.flag(kMxfp4Compute.name))
    compiled.options.set(kQuantization.name, std::move(*quantization));
  compiled.options.set(kKernels.name, kernels_text(enabled_kernels(settings, path)));
  if (const auto tp = number("tp_degree"))
    compiled.tp = static_cast<std::uint32_t>(std::min<std::uint64_t>(*tp, UINT32_MAX));
  const std::uint64_t first = number("start_rank_id").value_or(0);
  const auto count = number("local_ranks_size");
  if (compiled.tp && count && *count > 0 && *count < *compiled.tp && first + *count <= *compiled.tp) {
    compiled.options.set_number(kStartRank.name, first);
    compiled.options.set_number(kEndRank.name, first + *count - 1);
  }
  if (const Json* dtype = find_key(settings, "torch_dtype"); dtype != nullptr && dtype->is_string())
    compiled.dtype = torch_dtype(dtype->get<std::string>(), path);
  return compiled;
}

/// Returns the draft that a target loads. `config` is its configuration.
CompiledModel draft_of(const Json& config, const CompiledModel& target) {
  CompiledModel draft = compiled_of(neuron_settings(config), target.file);
  draft.role = kModels[1];
  for (const LayoutOption* option : {&kStartRank, &kEndRank}) draft.options.erase(option->name);
  if (draft.tp && target.tp && *draft.tp <= *target.tp) draft.options.set_number(kDraftDegree.name, *draft.tp);
  const Json& settings = neuron_settings(config);
  const Json* type = find_key(config, "model_type");
  const std::string model_type = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  for (const EagleVariant& variant : kEagleVariants) {
    if (!neuron_flag(settings, variant.flag, target.file)) continue;
    if (const auto family = builtin_family(model_type + variant.family))
      draft.family = family;
    else
      draft.unwritten = fmt::format("{}: drafts of {}", variant.flag, printable(model_type));
    break;
  }
  return draft;
}

}  // namespace

std::optional<CompiledModel> read_compiled_model(Files& files, const fs::path& directory) {
  const fs::path path = directory / kNeuronConfigFile;
  if (!files.exists(path)) return std::nullopt;
  const Json json = read_json_file(files, path, kMaxConfigBytes, JsonDialect::kPython);
  CompiledModel compiled = compiled_of(neuron_settings(json), path);
  if (compiled.unwritten.empty()) compiled.unwritten = other_ranks(neuron_settings(json));
  if (const Json* lora = find_key(neuron_settings(json), "lora_config"); lora != nullptr && lora->is_object()) {
    compiled.options.set(kLoraConfig.name, lora_config_text(*lora));
    CompiledModel adapters = compiled;
    adapters.role = kAdapterRoles[1];
    compiled.joined.push_back(std::move(adapters));
  }
  if (neuron_flag(neuron_settings(json), "is_medusa", path)) {
    CompiledModel heads = compiled_of(neuron_settings(json), path);
    heads.role = kMedusaRoles[1];
    const Json* count = find_key(neuron_settings(json), "num_medusa_heads");
    if (count != nullptr && count->is_number_unsigned())
      heads.options.set_number(kMedusaCount.name, count->get<std::uint64_t>());
    compiled.joined.push_back(std::move(heads));
  }
  const bool has_draft = neuron_flag(neuron_settings(json), "enable_fused_speculation", path) ||
                         neuron_flag(neuron_settings(json), "enable_eagle_speculation", path);
  if (!has_draft) return compiled;
  const Json* config = find_key(json, kDraftConfig);
  if (config != nullptr && config->is_object())
    compiled.joined.push_back(draft_of(*config, compiled));
  else
    compiled.unwritten = "enable_fused_speculation: a draft that it does not describe (fused_spec_config)";
  return compiled;
}

const CompiledModel* joined_model(const CompiledModel& compiled, const std::string& role) {
  const auto found = std::find_if(compiled.joined.begin(), compiled.joined.end(),
                                  [&](const CompiledModel& one) { return one.role == role; });
  return found == compiled.joined.end() ? nullptr : &*found;
}

namespace {

/// Returns the options with which the weights of `plan` would have the form that `compiled` loads.
std::vector<std::string> missing_options(CompiledModel compiled, const TargetPlan& plan) {
  std::vector<std::string> needed;
  erase_usual_degree(compiled.options, plan.mesh.tp);
  std::vector<const LayoutOption*> options = {&kDraftDegree};
  if (!has_same_adapters(compiled.options, plan.form)) options.push_back(&kLoraConfig);
  for (const NxdiSetting& setting : nxdi_settings()) options.push_back(setting.option);
  for (const LayoutOption* one : options) {
    const char* option = one->name;
    const auto value_in = [&](const OptionValues& form) { return form.has(option) ? form.all().at(option) : ""; };
    if (plan.idle.count(option) || value_in(compiled.options) == value_in(plan.form)) continue;
    const std::string value = value_in(compiled.options);
    const char* quote = value.find('"') == std::string::npos ? "" : "'";  // for the shell
    needed.push_back(value.empty()     ? fmt::format("without `{}`", option)
                     : value == "true" ? fmt::format("with `{}`", option)
                                       : fmt::format("with `{}` {}{}{}", option, quote, value, quote));
  }
  // The kernel of the fused projection is idle only because the plan does not fuse.
  const bool will_fuse = compiled.options.flag(kFuseQkv.name) && !plan.form.flag(kFuseQkv.name);
  const auto used = [&](const OptionValues& form) {
    Kernels kernels = kernels_of(form).value_or(Kernels{});
    std::erase_if(kernels, [&](const std::string& kernel) {
      return plan.idle.count(kernel) > 0 && !(will_fuse && kernel == "qkv");
    });
    return kernels;
  };
  const Kernels kernels = used(compiled.options);
  if (kernels != used(plan.form))
    needed.push_back(kernels.empty() ? fmt::format("without `{}`", kKernels.name)
                                     : fmt::format("with `{}` {}", kKernels.name, kernels_text(kernels)));
  const auto wanted = compiled.options.all().find(kQuantization.name), own = plan.form.all().find(kQuantization.name);
  if (wanted != compiled.options.all().end() && own != plan.form.all().end() && wanted->second != own->second)
    needed.push_back(fmt::format("with `{}` {}", kQuantization.name, wanted->second));
  return needed;
}

}  // namespace

namespace {

/// Validates that a compiled model is one of a model with the sizes of `model`. `compiled` is its configuration in
/// `path`, and `what` is "model" or "draft".
void validate_same_model(const Json& compiled, const fs::path& path, const Model& model, const std::string& what) {
  if (!has_model_config(compiled) || model.config == nullptr) return;
  const Json whole = model_config_of(compiled);
  const Json* part = model.config->contains(kTextConfig) ? nullptr : find_key(whole, kTextConfig);
  const Json& other = part == nullptr ? whole : *part;
  for (const char* key : kComparedKeys) {
    const Json* own = find_key(*model.config, key);
    const Json* needed = find_key(other, key);
    if (own == nullptr || needed == nullptr || own->is_null() || needed->is_null() || *own == *needed) continue;
    throw Error(ErrorKind::kBadInput, fmt::format("was compiled for another {}: {} is {} there, and {} in config.json",
                                                  what, key, json_text(*needed), json_text(*own)))
        .in(path)
        .hint(fmt::format("give the {} that it was compiled from, or one that was fine-tuned from it", what));
  }
}

/// Returns the option that casts the weights of `plan` to the dtype that `compiled` loads; empty if they have it.
std::string missing_cast(const CompiledModel& compiled, const TargetPlan& plan) {
  const auto is_of_joined = [&](const std::string& name) {
    return std::any_of(plan.joined.begin(), plan.joined.end(),
                       [&](const TargetPlan& one) { return name.starts_with(one.role + "."); });
  };
  const auto& tensors = plan.map.logical;
  const auto other = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    const DTypeRow& row = describe(tensor.dtype);
    const bool is_scale = tensor.dtype == DType::kF32 && tensor.name.find(kScale) != std::string::npos;
    return compiled.dtype && row.kind == DTypeClass::kFloat && row.bits >= 16 && tensor.dtype != *compiled.dtype &&
           !is_scale && !is_of_joined(tensor.name) &&
           !(plan.form.flag(kDeclaredDtypes.name) && tensor.dtype == DType::kF32);
  });
  return other == tensors.end() ? "" : fmt::format("with `dtype` {}", describe(*compiled.dtype).torch_name);
}

}  // namespace

void validate_compiled_form(Files& files, const TargetPlan& plan, const Model& model, const fs::path& directory) {
  const auto compiled = read_compiled_model(files, directory);
  if (!compiled) return;
  validate_written(*compiled);
  const Json json = read_json_file(files, compiled->file, kMaxConfigBytes, JsonDialect::kPython);
  if (plan.role == kModels[1]) {
    if (const Json* draft = find_key(json, kDraftConfig)) validate_same_model(*draft, compiled->file, model, plan.role);
    return;
  }
  if (joined_model(*compiled, plan.role) != nullptr) return;
  validate_same_model(json, compiled->file, model, "model");
  const auto refuse = [&](const std::string& problem, const std::string& hint) {
    throw Error(ErrorKind::kBadInput, "belongs to a model that was compiled for " + problem)
        .in(compiled->file)
        .hint(hint + ", or choose another directory");
  };
  const std::string other_format = "weights in another format";
  std::vector<std::string> needed;
  if (compiled->tp && *compiled->tp != plan.mesh.tp) needed.push_back(fmt::format("with `tp` {}", *compiled->tp));
  for (std::string& option : missing_options(*compiled, plan)) needed.push_back(std::move(option));
  if (std::string cast = missing_cast(*compiled, plan); !cast.empty()) needed.push_back(std::move(cast));
  if (!needed.empty()) refuse(other_format, "write them " + join(needed, " and "));
  for (const CompiledModel& other : compiled->joined) {
    const auto own = std::find_if(plan.joined.begin(), plan.joined.end(),
                                  [&](const TargetPlan& one) { return one.role == other.role; });
    if (own == plan.joined.end())
      refuse(fmt::format("weights of `{}` in the same files", other.role),
             fmt::format("set `{}` to their path", other.role));
    if (const auto lacks = missing_options(other, *own); !lacks.empty())
      refuse(fmt::format("{} of `{}`", other_format, other.role),
             fmt::format("write these {} (`for` takes the settings of each model)", join(lacks, " and ")));
  }
  for (const TargetPlan& own : plan.joined)
    if (joined_model(*compiled, own.role) == nullptr)
      refuse("one model alone", fmt::format("leave out `{}`", own.role));
}

}  // namespace reshard
