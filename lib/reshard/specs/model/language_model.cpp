#include "reshard/specs/model/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/config/ties.h"
#include "reshard/specs/model/other_heads.h"

namespace reshard {
namespace {

/// Keys for parts other than a language model. If one is next to the keys of a language model, the model is a larger
/// one.
constexpr const char* kOtherConfigs[] = {"vision_config", "audio_config", "visual", "vit_config", "embd_layer"};
/// Keys of the outer configuration that also apply to the language model.
constexpr const char* kSharedKeys[] = {kTiedKey, "quantization_config", "dtype", "torch_dtype"};

const Json* object_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_object() ? &*found : nullptr;
}

/// Returns the configuration of the language model in `config`, at any depth, or null. `path` is the path of
/// config.json.
const Json* text_config(const Json& config, const std::filesystem::path& path) {
  const char* const usual = kTextConfigs[0];
  if (const auto part = config.find(usual); part != config.end() && !part->is_object() && !part->is_null())
    throw Error(ErrorKind::kBadInput, fmt::format("\"{}\" is {}, expected an object", usual, brief(*part))).in(path);
  for (const char* key : kTextConfigs)
    if (const Json* part = object_at(config, key)) {
      const Json* deeper = text_config(*part, path);
      return deeper ? deeper : part;
    }
  return nullptr;
}

std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Returns, for example, "LlamaForCausalLM"; empty if the configuration names no class.
std::string first_architecture(const Json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty() || !found->front().is_string()) return {};
  return found->front().get<std::string>();
}

/// Returns the built-in family of this name if it describes a language model.
std::shared_ptr<const Family> described(const std::string& model_type) {
  auto family = builtin_family(model_type);
  return family && !family->modules.empty() ? family : nullptr;
}

/// Returns the common prefix of the layers and of all embeddings outside them, up to a dot: "model." for "model.layers"
/// and "model.embed_tokens", and also for "model.decoder.layers" with "model.encoder.embed_tokens". Ignores embeddings
/// that begin with another word.
std::string base_of(const Family& family) {
  const std::string root = family.layers.substr(0, family.layers.find('.') + 1);
  std::string base = family.layers.substr(0, family.layers.rfind('.') + 1);
  for (const Family::Module& module : family.modules) {
    if (module.plan != TensorParallelPlan::kEmbeddingRowwise || !module.name.starts_with(root) ||
        module.name.starts_with(family.layers + "."))
      continue;
    while (!module.name.starts_with(base)) base.erase(base.rfind('.', base.size() - 2) + 1);
  }
  return base;
}

/// Returns the distinct prefixes of `suffix` in names.
std::vector<std::string> prefixes_before(const std::string& suffix, const std::unordered_set<std::string_view>& names) {
  std::vector<std::string> prefixes;
  for (const std::string_view name : names) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view prefix = name.substr(0, name.size() - suffix.size());
    if (prefix.empty() || prefix.back() == '.') prefixes.emplace_back(prefix);
  }
  std::sort(prefixes.begin(), prefixes.end());
  return prefixes;
}

/// Returns the prefix under which `names` have modules of the family's first layer: `base`, or the prefix with most of
/// them. Returns an empty list if it does not exist or is not unique. Vision towers and layers of multi-token
/// prediction also have some of these modules.
std::vector<std::string> prefix_of_layers(const Family& family, const std::string& base,
                                          const std::unordered_set<std::string_view>& names) {
  std::unordered_set<std::string_view> first_layer;
  const std::string layer = expand_layer(family.layers.substr(base.size()) + ".*.", 0);
  for (const std::string_view name : names)
    if (name.find(layer) != name.npos) first_layer.insert(name);
  std::map<std::string, std::size_t> counts;
  for (const Family::Module& module : family.modules) {
    if (!module.name.starts_with(family.layers + ".*.") || module.experts || module.items) continue;
    const std::string name = expand_layer(module.name, 0).substr(base.size());
    for (const std::string& prefix :
         prefixes_before(module.parameter.empty() ? name : name + "." + module.parameter, first_layer))
      ++counts[prefix];
  }
  if (counts.count(base) > 0) return {base};
  std::size_t most = 0;
  std::vector<std::string> found;
  for (const auto& [prefix, count] : counts) {
    if (count < most) continue;
    if (count > most) found.clear();
    most = count;
    found.push_back(prefix);
  }
  return found.size() == 1 ? found : std::vector<std::string>();
}

/// Returns the prefix of the language model's head if the base model has the prefix `base`.
std::string prefix_of_head(const std::string& base) {
  constexpr std::string_view kBaseModel = "model.";
  if (base == kBaseModel || !base.ends_with("." + std::string(kBaseModel))) return {};
  return base.substr(0, base.size() - kBaseModel.size());
}

/// Returns the family with the prefix `own` instead of `base`, and `head` before the names of modules without it.
std::shared_ptr<const Family> with_prefixes(const Family& family, const std::string& base, const std::string& own,
                                            const std::string& head) {
  Family renamed = family;
  const bool is_base_alone = !base.empty() && !own.starts_with(base) && !("." + own).ends_with("." + base);
  const auto rename = [&](std::string& name) {
    if (name.empty()) return;
    if (name.starts_with(base))
      name.replace(0, base.size(), own);
    else
      name.insert(0, head);
  };
  rename(renamed.layers);
  for (Family::Module& module : renamed.modules) {
    // A base model saved alone has no head.
    if (is_base_alone && !module.name.starts_with(base)) module.optional = true;
    rename(module.name);
    rename(module.tied_to);
  }
  if (renamed.attention) rename(renamed.attention->module);
  for (Family::Fused& fused : renamed.fused) rename(fused.module);
  for (std::string& module : renamed.whole) rename(module);
  if (renamed.file.empty()) renamed.schemes = builtin_schemes_for(renamed);
  return std::make_shared<const Family>(std::move(renamed));
}

/// Whether models have this head in addition to the language model's.
bool is_beside(std::string_view head) {
  return head == "v_head" || head == "value_head";
}

/// Whether models of this class have no head: true for "LlamaModel", false for "GPT2LMHeadModel".
bool is_base_model(const std::string& architecture) {
  constexpr std::string_view kWithHead[] = {"LMHeadModel", "DoubleHeadsModel", "ChatGLMModel"};
  return architecture.ends_with("Model") &&
         std::none_of(std::begin(kWithHead), std::end(kWithHead),
                      [&](std::string_view suffix) { return architecture.ends_with(suffix); });
}

/// Whether `module` is the head of the language model, which may be tied.
bool is_head(const Family::Module& module) {
  return !module.tied_to.empty();
}

/// Returns the family with the heads of the checkpoint.
std::shared_ptr<const Family> with_heads_of(std::shared_ptr<const Family> family, const std::string& architecture,
                                            const std::unordered_set<std::string_view>& names) {
  std::set<std::string, std::less<>> others;
  for (const std::string_view name : names)
    if (const std::string_view head = name.substr(0, name.find('.')); is_other_head(head)) others.emplace(head);
  const bool replaced =
      is_base_model(architecture) ||
      std::any_of(others.begin(), others.end(), [](const std::string& head) { return !is_beside(head); });
  if (others.empty() && !replaced) return family;
  Family changed = *family;
  for (Family::Module& module : changed.modules)
    if (is_head(module)) module.optional = module.optional || replaced;
  changed.whole.insert(changed.whole.end(), others.begin(), others.end());
  return std::make_shared<const Family>(std::move(changed));
}

/// Returns the layer of `name`, which begins with `layers` ("model.layers."); std::nullopt if the model has no such
/// layer.
std::optional<std::uint64_t> layer_of(std::string_view name, const std::string& layers, std::uint64_t count) {
  const std::string_view rest = name.substr(layers.size());
  const auto layer = parse_unsigned(rest.substr(0, rest.find('.')), kMaxLayers - 1);
  return layer && *layer < count ? layer : std::nullopt;
}

/// Scales of the key/value cache, for attention modules of quantised models.
bool is_cache_scale(std::string_view name) {
  return name.ends_with("_attn.k_scale") || name.ends_with("_attn.v_scale") || name.ends_with("_attn.q_scale") ||
         name.ends_with("_attn.attn.k_scale") || name.ends_with("_attn.attn.v_scale");
}

/// Adds tensors of `names` that the family does not list, as replicated parameters: buffers and cache scales in their
/// layer, and tensors in modules of Family::whole on the last stage. With `other_parts`, also adds all other tensors
/// outside the layers, on the first stage.
void add_unlisted(Model& model, const std::unordered_set<std::string_view>& names, bool other_parts) {
  const std::string layers = model.family->layers + ".";  // "." if there are no layers: no name begins with it
  const std::string base = base_of(*model.family);
  const bool own_base = std::count(base.begin(), base.end(), '.') > 1;  // not shared with other parts
  const auto is_whole = [&](std::string_view name) {
    return std::any_of(model.family->whole.begin(), model.family->whole.end(), [&](const std::string& module) {
      return name.starts_with(module) && name.substr(module.size()).starts_with('.');
    });
  };
  // Most models have no such name, and are done here.
  const auto may_be = [&](std::string_view name) {
    return is_attention_buffer(name) || (model.quantized && is_cache_scale(name)) || is_whole(name) ||
           (other_parts && !name.starts_with(layers));
  };
  std::vector<std::string> unlisted;
  for (const std::string_view name : names)
    if (may_be(name)) unlisted.emplace_back(name);
  model.is_part = other_parts;
  if (unlisted.empty()) return;
  std::unordered_set<std::string_view> listed;
  for (const ModelParameter& parameter : model.parameters) listed.insert(parameter.name);
  std::erase_if(unlisted, [&](const std::string& name) { return listed.count(name) > 0; });
  std::sort(unlisted.begin(), unlisted.end(), natural_less);

  std::vector<ModelParameter> others, buffers, whole;
  for (std::string& name : unlisted) {
    ModelParameter parameter;
    parameter.module = name.substr(0, name.rfind('.'));
    parameter.optional = true;
    parameter.shape_known = is_cache_scale(name) ? ShapeKnown::kOneElement : ShapeKnown::kNot;
    parameter.trained = !is_attention_buffer(name) && !is_cache_scale(name);
    const bool in_layers = name.starts_with(layers);
    std::vector<ModelParameter>* list = nullptr;
    if (is_attention_buffer(name) || (model.quantized && in_layers && is_cache_scale(name))) {
      if (in_layers) parameter.layer = layer_of(name, layers, model.layers);
      if (!in_layers || parameter.layer) list = &buffers;
    } else if (is_whole(name)) {
      parameter.stage = OuterStage::kLast;
      list = &whole;
    } else if (other_parts && !in_layers && !(own_base && name.starts_with(base))) {
      list = &others;
    }
    if (!list) continue;
    parameter.name = std::move(name);
    list->push_back(std::move(parameter));
  }

  std::vector<ModelParameter> parameters = std::move(others);
  for (std::vector<ModelParameter>* list : {&model.parameters, &buffers, &whole})
    std::move(list->begin(), list->end(), std::back_inserter(parameters));
  model.parameters = std::move(parameters);
}

/// Validates that config.json has the numbers of its language model, if a larger model has no text_config.
void validate_text_config(const LanguageModel& found) {
  if (!found.lacks_config || !found.family) return;
  const Json& config = *found.config.json;
  for (const std::string& key : found.family->num_layers.keys()) {
    const auto given = config.find(key);
    if ((given != config.end() && !given->is_null()) || found.family->defaults->contains(key)) continue;
    throw Error(ErrorKind::kBadInput,
                fmt::format("\"{}\" is {}, which has the sizes of the language model", kTextConfigs[0],
                            config.contains(kTextConfigs[0]) ? "null" : "missing"))
        .in(found.config.path)
        .hint("use the config.json that came with the weights");
  }
}

}  // namespace

LanguageModel find_language_model(const ModelConfig& config, const std::shared_ptr<const Family>& spec) {
  const Json* part = text_config(*config.json, config.path);
  const std::string part_type = part ? text_at(*part, "model_type") : std::string();
  if (spec && spec->modules.empty())  // a larger model, which only names its language model
  {
    const auto own = described(part_type);
    return find_language_model(config, own ? own : described(spec->language_model));
  }
  const auto outer = builtin_family(config.model_type);
  const bool is_larger = outer && outer->modules.empty();
  const bool is_flat = !part || (part_type.empty() && !is_larger && !part->contains("hidden_size"));
  LanguageModel model;
  model.config = config;
  model.architecture = first_architecture(*config.json);
  if (is_flat || (spec && spec->model_type == config.model_type)) {
    model.family = spec ? spec : described(is_larger ? outer->language_model : config.model_type);
    model.lacks_config = is_larger && !part;
    model.is_part = is_larger || config.json->contains("mm_vision_tower") ||
                    std::any_of(std::begin(kOtherConfigs), std::end(kOtherConfigs),
                                [&](const char* key) { return object_at(*config.json, key) != nullptr; });
    return model;
  }
  model.is_part = true;
  if (!part_type.empty()) model.config.model_type = part_type;
  model.family = spec ? spec : described(model.config.model_type);
  if (is_larger && !model.family) {
    model.family = described(outer->language_model);
    model.unknown_type = part_type;
    model.config.model_type = outer->language_model;
  }
  model.config.ties = ties_by_level(*config.json);
  Json json = *part;
  for (const char* key : kSharedKeys) {
    const auto own = json.find(key);
    if ((own == json.end() || own->is_null()) && config.json->contains(key)) json[key] = config.json->at(key);
  }
  if (model.family && model.family->class_defaults)
    for (const auto& [key, value] : model.family->class_defaults->items())
      if (!json.contains(key)) json[key] = value;
  model.config.json = std::make_shared<const Json>(std::move(json));
  return model;
}

std::string describe_unknown_type(const ModelConfig& config) {
  return config.model_type.empty() ? config.path.filename().string() + " has no \"model_type\""
                                   : fmt::format("the model_type \"{}\" is not known", printable(config.model_type));
}

std::string propose_families(const std::vector<std::string>& fitting) {
  if (fitting.empty()) return {};
  if (fitting.size() == 1) return fmt::format("its tensors are those of {0}: give `family` {0}", fitting.front());
  return fmt::format("its tensors fit several families; choose one with `family`: {}", join(fitting, ", "));
}

Error unknown_model_type(const ModelConfig& config, const std::vector<std::string>& fitting) {
  const ModelConfig found = find_language_model(config).config;
  const std::string& model_type = found.model_type;
  Error error = model_type.empty()
                    ? Error(ErrorKind::kBadInput, "has no \"model_type\", which names the model's family")
                    : Error(ErrorKind::kUnsupported, describe_unknown_type(found));
  error.in(config.path);
  if (!fitting.empty()) return error.hint(propose_families(fitting));
  if (model_type.empty())
    return error.hint(
        "add one, such as \"model_type\": \"llama\"; or give a built-in family with `family`, or a description of the "
        "model with `spec`");
  const std::string guess = nearest(model_type, known_model_types());
  return error.hint(
      (guess.empty() ? std::string() : "the nearest known is " + guess + "; ") +
      "give a built-in family with `family`, a description of the model with `spec` (`print-family` shows a built-in "
      "one), or put the base_model_tp_plan of its configuration class into config.json");
}

std::shared_ptr<const Family> with_prefixes_of(std::shared_ptr<const Family> family,
                                               const std::unordered_set<std::string_view>& names) {
  if (family->layers.empty()) return family;  // names are complete
  const std::string base = base_of(*family);
  const auto embedding =
      std::find_if(family->modules.begin(), family->modules.end(), [&](const Family::Module& module) {
        return module.plan == TensorParallelPlan::kEmbeddingRowwise && module.name.starts_with(base);
      });
  if (embedding == family->modules.end()) return family;
  std::vector<std::string> found =
      prefixes_before(embedding->name.substr(base.size()) + "." + embedding->parameter, names);
  if (std::find(found.begin(), found.end(), base) != found.end()) return family;
  const std::string layers = family->layers.substr(base.size());
  const auto has_layers = [&](const std::string& prefix) {
    return std::any_of(names.begin(), names.end(),
                       [&, start = prefix + layers + "."](std::string_view name) { return name.starts_with(start); });
  };
  if (has_layers(base)) return family;  // the embedding may be missing, and another part may have one
  // Layers of multi-token prediction have separate embeddings.
  std::erase_if(found, [&](const std::string& prefix) { return !has_layers(prefix); });
  if (found.empty()) found = prefix_of_layers(*family, base, names);
  if (found.size() != 1) return family;
  const std::string& own = found.front();
  std::string head = prefix_of_head(own);
  for (const Family::Module& module : family->modules)
    if (!module.tied_to.empty() && !module.name.starts_with(base))
      if (const auto heads = prefixes_before(module.name + "." + module.parameter, names); heads.size() == 1)
        head = heads.front();
  return with_prefixes(*family, base, own, head);
}

bool is_attention_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".masked_bias");
}

Model instantiate(const ModelConfig& config, const HoldsName& holds) {
  const LanguageModel model = find_language_model(config);
  if (!model.family) throw unknown_model_type(config);
  return instantiate(model.family, model.config, holds);
}

Model instantiate(const LanguageModel& found, const std::unordered_set<std::string_view>& names) {
  validate_text_config(found);
  const auto family = with_heads_of(with_prefixes_of(found.family, names), found.architecture, names);
  const HoldsName holds = [&](const std::string& name) { return names.count(name) > 0; };
  // Rank files may stack experts that are many parameters. A configuration that requires far more belongs to another
  // model.
  constexpr std::uint64_t kFewNames = 1 << 18;
  Model model =
      instantiate(family, found.config, holds, std::min(kMaxParameters, kFewNames + 8 * names.size()), names.size());
  model.renamed = family != found.family;
  add_unlisted(model, names, found.is_part);
  return model;
}

LanguageModel with_inference_prefix(LanguageModel found) {
  const std::string base = base_of(*found.family);
  const std::string& prefix = found.family->inference->prefix;
  if (found.is_part && !prefix.empty()) found.family = with_prefixes(*found.family, base, prefix + base, prefix);
  return found;
}

}  // namespace reshard
