#include "reshard/layouts/core/strangers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "reshard/base/pattern.h"

namespace reshard {

namespace fs = std::filesystem;

namespace {

/// Names that one system uses, the system, and a remedy. A row with a condition is a guess for unexplained tensors.
struct Stranger {
  const char* pattern;            // matches part of a tensor's name
  const char* system;             // "belongs to ..."
  const char* hint;               // null: that of unmerged_error
  const char* sibling = nullptr;  // condition: a tensor exists whose name ends in this instead
  const char* never = nullptr;    // condition: no name matches this pattern
  const char* needs = nullptr;    // condition: some name matches this pattern
  const char* problem = "such checkpoints are not supported";

  bool is_guess() const { return sibling != nullptr || never != nullptr || needs != nullptr; }
};

constexpr const char* kTakeOriginal = "use the Hugging Face model that it was converted from";

/// Names in a model with an adapter: as PEFT names them in training, with the name of the adapter, and as it and other
/// programs save them.
constexpr const char* kOfAdapter = R"(\.lora_(embedding_)?[ABab](\.|$)|\.base_layer\.)";

constexpr const char* kUnmerged = "a LoRA adapter that is not merged into the weights";

/// The first row that matches any name is used, so specific rows come before general ones.
constexpr Stranger kStrangers[] = {
    {.pattern = R"(^(target|draft)_model\.)",
     .system = "fused speculation in NxD Inference: a target and a draft model in one file",
     .hint = "set `config` to the directory of the target, or to that of the draft, with `fused-model` draft",
     .problem = "without config.json, such checkpoints are not supported"},
    {R"((^|\.)medusa_heads?[_.])", "Medusa heads", "use the Hugging Face model without them"},
    {R"(\.lora_[AB]\.weight_active$)", "NxD Inference's multi-LoRA serving",
     "use the Hugging Face model and the adapters that the files were converted from"},
    {kOfAdapter, kUnmerged, nullptr},
    {R"(\.(cte|tkg)_(qkv_proj|o_proj|mlp)\.)",
     "NxD Inference's separate weights for context encoding and token generation (cp_degree, attention_dp_degree, "
     "mlp_cp_degree)",
     "use the Hugging Face model that the files were converted from"},
    {R"(\.self_attention\.linear_(qkv|proj|q_|kv_)|^decoder\.layers\.(\d+\.)?mlp\.linear_fc[12]\.)",
     "a checkpoint of Megatron-LM",
     "export the model from Megatron-LM with Hugging Face's names, for instance with Megatron Bridge"},
    {.pattern = R"((^|\.)(fc|hidden_norm)\.weight$|(^|\.)midlayer\.)",
     .system = "a draft model of EAGLE",
     .hint =
         "to read rank files, set `family` to llama_eagle or llama_eagle3; to write them, shard it with its target for "
         "NxD Inference: `draft`, with `draft-family` llama_eagle or llama_eagle3 unless `for` is given; its layer "
         "must be "
         "called layers.0, not midlayer",
     .never = R"((^|\.)layers\.[1-9])",
     .needs = R"((^|\.)(layers\.0|midlayer)\.)",
     .problem = "with the family of its config.json, such checkpoints are not supported"},
    {.pattern = R"(\.scale$)",
     .system = "NxD's own quantisation, which stores scales next to the weights as .scale",
     .hint = "set `config` to the model's config.json, or use the model from before it was quantised",
     .sibling = ".weight",
     .never = R"((^|\.)rank_util\.rank$)",
     .problem = "without config.json, and in rank files of other programs, such checkpoints are not supported"},
};

/// Patterns of files that one system writes: NAME or FOLDER/NAME.
constexpr Stranger kStrangeFiles[] = {
    // Trainers with other backends write latest_checkpointed_iteration.txt, too.
    {R"(^(mp_rank_\d+(_\d+){2}/)?(model_optim_rng|model_rng|distrib_optim)\.pt$|^(iter_\d{7}|release)/mp_rank_\d+(_\d+){2}$|^(iter_\d{7}|release)/(common\.pt|metadata\.json|\.metadata)$)",
     "a checkpoint of Megatron-LM",
     "export the model from Megatron-LM with Hugging Face's names, for instance with Megatron Bridge"},
    {R"(^(tp_rank_\d+_pp_rank_\d+/)?model_optim_rng\.ckpt$)", "a checkpoint of neuronx-nemo-megatron",
     "export the model with the converters of the program that trained it"},
    {R"(^consolidated(\.\d+)?\.pth$)", "a checkpoint with Meta's tensor names",
     "use the model in Hugging Face's format, or convert it with Transformers' script for this family"},
    {R"(^consolidated.*\.safetensors(\.index\.json)?$)", "a checkpoint with Mistral's tensor names",
     "use the model in Hugging Face's format, model.safetensors or model-00001-of-N.safetensors"},
    {R"(^rank\d+\.(engine|safetensors)$)", "a TensorRT-LLM engine", kTakeOriginal},
    {R"(^[^/]+\.gguf$)", "llama.cpp (GGUF)", kTakeOriginal},
    {R"(^[^/]+\.onnx$)", "an exported ONNX graph", kTakeOriginal},
    {R"(^(tf_model\.h5|flax_model\.msgpack)$)", "a TensorFlow or Flax model",
     "load it in Transformers with from_tf or from_flax, and save it with save_pretrained"},
    {R"(\.ckpt(-\d+)?\.(index|data-\d+-of-\d+)$)", "a TensorFlow checkpoint",
     "load it in Transformers with from_tf, and save it with save_pretrained"},
    {R"(-TP-(common|\d+)\.safetensors$)", "a model that is split for SGLang's tensor-parallel ranks, such as grok-2",
     "use the model with whole tensors; an index would not help, since each file contains a part of each tensor"},
    {R"(^model\d+-mp\d+\.safetensors$)", "a model that DeepSeek's inference code has split over ranks",
     "use the Hugging Face model that it was converted from; an index would not help, since each file contains a part "
     "of each tensor"},
    {R"(^([^/]+/)?(manifest\.ocdbt|_CHECKPOINT_METADATA|orbax\.checkpoint)$)", "an Orbax checkpoint (JAX, MaxText)",
     "export the model with the program that trained it, as MaxText does to Hugging Face's format"},
    {R"(\.(pdparams|pdiparams|pdopt)(\.index\.json)?$)", "a PaddlePaddle model",
     "save it with PaddleNLP's or PaddleFormers' export to Hugging Face's format"},
    {R"(^[^/]+\.nemo$)", "NeMo", "export the model with NeMo to Hugging Face's format"},
    {R"(^[^/]+\.npz$)", "NumPy, such as the weights of an MLX model",
     "save the arrays as model.safetensors, as mlx.core.save_safetensors does"},
};

bool holds(const Stranger& row, std::string_view name, const std::unordered_set<std::string_view>& all) {
  if (row.sibling != nullptr && all.count(std::string(name.substr(0, name.rfind('.'))) + row.sibling) == 0)
    return false;
  const auto found = [&](const char* text) {
    const Pattern pattern(text);
    return std::any_of(all.begin(), all.end(), [&](std::string_view other) { return pattern.found_in(other); });
  };
  return (row.never == nullptr || !found(row.never)) && (row.needs == nullptr || found(row.needs));
}

Error error_for(const Stranger& row, const char* verb) {
  Error error(ErrorKind::kUnsupported, std::string(verb) + row.system + "; " + row.problem);
  error.hint(row.hint);
  return error;
}

/// Whether the model's parameters include every tensor.
bool is_plan(const Model* model) {
  return model != nullptr && model->by_config_plan;
}

/// Returns the names of the model's parameters that its family describes.
std::unordered_set<std::string_view> explained_by(const Model* model) {
  std::unordered_set<std::string_view> names;
  if (model != nullptr && !is_plan(model))
    for (const ModelParameter& parameter : model->parameters) names.insert(parameter.name);
  return names;
}

/// Returns the error for the tensor of an adapter.
Error unmerged_error(std::string_view tensor, const std::vector<std::string_view>& names) {
  const Pattern pattern(kOfAdapter);
  const auto is_base = [&](std::string_view name) { return !pattern.found_in(name); };
  const auto is_wrapped = [](std::string_view name) { return name.find(".base_layer.") != name.npos; };
  const bool has_base_layers = std::any_of(names.begin(), names.end(), is_wrapped);
  const bool is_alone = !has_base_layers && std::none_of(names.begin(), names.end(), is_base);
  Error error(ErrorKind::kUnsupported,
              fmt::format("belongs to {}{}", kUnmerged, is_alone ? "; the base model's weights are missing" : ""));
  error.hint(
      is_alone
          ? "save the adapter with PEFT's save_pretrained; without `config`, convert writes its tensors as they are"
          : fmt::format("save the merged model: in NxD with save_lora_base and merge_lora, in PEFT with "
                        "merge_and_unload; or convert it twice: `drop` \"lora_\"{} for the base model, `keep` "
                        "\"lora_\" for the adapter's tensors",
                        has_base_layers ? " and `rename` \"base_layer\\.=\"" : ""));
  return error.tensor(std::string(tensor));
}

/// Returns an error for the first of the files in `directory` that another system writes, if there is one.
std::optional<Error> strange_file(const std::vector<std::string>& names, const fs::path& directory) {
  for (const Stranger& row : kStrangeFiles) {
    const Pattern pattern(row.pattern);
    for (const std::string& name : names)
      if (pattern.found_in(name)) return error_for(row, "is a file of ").in(directory / name);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> unmerged_adapter(const std::vector<std::string_view>& names, const Model* model) {
  if (is_plan(model)) return std::nullopt;
  const Pattern pattern(kOfAdapter);
  const std::unordered_set<std::string_view> explained = explained_by(model);
  for (const std::string_view name : names)
    if (explained.count(name) == 0 && pattern.found_in(name)) return unmerged_error(name, names);
  return std::nullopt;
}

std::optional<Error> stranger_among(const std::vector<std::string_view>& names, const Model* model,
                                    std::unordered_set<std::string_view> explained) {
  const std::unordered_set<std::string_view> all(names.begin(), names.end());
  explained.merge(explained_by(model));
  for (const Stranger& row : kStrangers) {
    if (is_plan(model) && row.is_guess()) continue;
    const Pattern pattern(row.pattern);
    for (const std::string_view name : names) {
      if (explained.count(name) > 0 || !pattern.found_in(name) || !holds(row, name, all)) continue;
      return row.hint == nullptr ? unmerged_error(name, names)
                                 : error_for(row, "belongs to ").tensor(std::string(name));
    }
  }
  return std::nullopt;
}

std::optional<Error> stranger_in(Files& files, const fs::path& path) {
  constexpr std::size_t kMostFolders = 64;
  if (files.is_file(path)) return strange_file({own_name(files, path)}, directory_above(files, path));
  if (!files.is_directory(path)) return std::nullopt;
  std::vector<std::string> names;
  std::size_t folders = 0;
  for (const DirectoryEntry& entry : files.list(path)) {
    names.push_back(entry.name);
    if (entry.kind != FileKind::kDirectory || ++folders > kMostFolders) continue;
    try {
      for (const DirectoryEntry& inner : files.list(path / entry.name)) names.push_back(entry.name + "/" + inner.name);
    } catch (const Error&) {  // a folder that cannot be listed identifies no system
    }
  }
  std::sort(names.begin(), names.end());
  return strange_file(names, path);
}

}  // namespace reshard
